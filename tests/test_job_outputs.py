"""Jobs write the outputs that are recorded of their version; see job_outputs.py."""

import pytest

from input_pipelines.gather import write_beir
from t5x_style.configuration import signatures
from tests import job_outputs
from tests.test_job_declarations import declared

RECORDED = job_outputs.read(job_outputs.GOLDEN)
NAME = "block_collection"
FILE = "corpus/corpus.jsonl"
CASE = job_outputs.CASES[NAME]


@pytest.mark.parametrize("name", sorted(job_outputs.CASES))
def test_outputs_are_those_recorded(name, tmp_path):
    case = job_outputs.CASES[name]
    assert case.declaration.name == name
    found = job_outputs.run(case, tmp_path)
    if problem := job_outputs.problem(name, case, found, RECORDED.get(name)):
        pytest.fail(problem, pytrace=False)


def test_recorded_jobs_exist():
    assert job_outputs.removed(RECORDED) == []


def test_every_job_is_recorded_or_has_a_reason():
    jobs = {job["name"] for target, job in declared() if not target.startswith("tests.")}
    cases, others = job_outputs.CASES.keys(), job_outputs.NOT_RECORDED.keys()
    assert sorted(jobs - cases - others) == [], "add them to CASES or NOT_RECORDED"
    assert sorted(others - jobs) == [] and not cases & others


# --- the comparison itself ------------------------------------------------------------------------


@pytest.fixture
def changed(monkeypatch):
    """Passages lose their titles, as after an edit."""
    row = write_beir._row
    monkeypatch.setattr(write_beir, "_row", lambda one: {k: row(one)[k] for k in ("_id", "text")})


@pytest.fixture
def raised(monkeypatch):
    """The job declares the next version."""
    version = RECORDED[NAME].version + 1
    monkeypatch.setattr(signatures, "job", lambda target: signatures.Job(NAME, version))


@pytest.fixture
def golden(monkeypatch, tmp_path):
    """A copy of the recorded outputs, which the command compares with one job."""
    path = tmp_path / "golden.json"
    path.write_text(job_outputs.GOLDEN.read_text())
    monkeypatch.setattr(job_outputs, "GOLDEN", path)
    monkeypatch.setattr(job_outputs, "CASES", {NAME: CASE})
    return path


def problem_of(folder, recorded=RECORDED[NAME]):
    folder.mkdir(exist_ok=True)
    return job_outputs.problem(NAME, CASE, job_outputs.run(CASE, folder), recorded)


def test_a_changed_output_is_reported_with_what_to_do(changed, tmp_path):
    version = RECORDED[NAME].version
    assert problem_of(tmp_path).splitlines() == [
        f"{NAME}: expected the outputs of version {version} in job_outputs.json, found with "
        f"version {version}:",
        f"  differs: {FILE}",
        f"Raise the version in JOBS of input_pipelines/gather/write_beir.py to {version + 1} if "
        "the change is meant, so that earlier results are not reused; then run: "
        "python -m tests.job_outputs --write",
        "If only the inputs changed, which job_inputs.py makes, run: "
        "python -m tests.job_outputs --write --force",
    ]


def test_new_and_missing_outputs_are_reported(tmp_path):
    others = job_outputs.Outputs(RECORDED[NAME].version, {"corpus/passages.jsonl": "0" * 64})
    problem = problem_of(tmp_path, others)
    assert f"\n  new: {FILE}\n  missing: corpus/passages.jsonl\n" in problem


def test_a_raised_version_fails_until_it_is_recorded(changed, raised, golden, tmp_path):
    version = RECORDED[NAME].version
    expected = (
        f"{NAME}: input_pipelines/gather/write_beir.py declares version {version + 1}, outputs are "
        f"recorded of version {version}. Run python -m tests.job_outputs --write to record the new "
        "outputs"
    )
    assert problem_of(tmp_path / "before") == expected
    assert job_outputs.main([]).splitlines()[0] == expected
    assert job_outputs.main(["--write"]) is None
    assert problem_of(tmp_path / "after", job_outputs.read(golden)[NAME]) == ""
    assert job_outputs.main([]) is None


def test_a_lowered_version_is_reported(tmp_path):
    """Results of the lower version may still be there."""
    later = job_outputs.Outputs(RECORDED[NAME].version + 1, RECORDED[NAME].outputs)
    assert f"to {later.version + 1} if the change is meant" in problem_of(tmp_path, later)


def test_an_unrecorded_job_and_a_removed_one_are_reported(tmp_path):
    assert problem_of(tmp_path, None) == (
        f"{NAME}: no outputs are recorded. Run: python -m tests.job_outputs --write"
    )
    (line,) = job_outputs.removed(["prepare", "no_such_job"])
    assert line.startswith("no_such_job: outputs are recorded, but CASES")


def test_a_changed_output_is_not_recorded_unless_forced(changed, golden):
    before = golden.read_text()
    refused = job_outputs.main(["--write"])
    assert refused.startswith(f"nothing was recorded\n{NAME}: expected the outputs of version")
    assert golden.read_text() == before
    assert job_outputs.main(["--write", "--force"]) is None
    assert golden.read_text() != before
    assert job_outputs.main([]) is None
