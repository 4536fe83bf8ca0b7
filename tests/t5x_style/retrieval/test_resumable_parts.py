"""The lines of a long job in parts: stopped anywhere, it ends with the same file."""

import pytest

from t5x_style.retrieval import resumable_parts

LINES = [f"line {number}\u2028\n" for number in range(10)]  # a line separator breaks no line


def make(folder, version="v", count=10, size=4) -> resumable_parts.ResumableParts:
    return resumable_parts.ResumableParts(folder, version, count, size)


def write(job, numbers) -> None:
    for number in numbers:
        start, end = job.bounds[number]
        job.write(number, LINES[start:end])


def test_what_is_missing_is_made_and_joined_in_order(tmp_path):
    job = make(tmp_path)
    assert job.bounds == [(0, 4), (4, 8), (8, 10)] and job.missing() == [0, 1, 2]
    write(job, [2, 0])
    again = make(tmp_path)
    assert again.missing() == [1]
    with pytest.raises(FileNotFoundError, match="00001"):
        again.join("all.jsonl")
    assert make(tmp_path).missing() == [1] and not (tmp_path / "all.jsonl").exists()
    write(again, [1])
    assert list(again.lines()) == LINES
    assert again.join("all.jsonl").read_text() == "".join(LINES)
    assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]


def test_an_interrupted_part_leaves_nothing_that_counts(tmp_path):
    def broken():
        yield LINES[0]
        raise KeyboardInterrupt

    job = make(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        job.write(0, broken())
    write(job, [1])
    (written,) = (tmp_path / "parts").glob("*/00001.jsonl")
    written.with_name("00000.jsonl.tmp").write_text("half")  # what a kill leaves
    assert make(tmp_path).missing() == [0, 2]


@pytest.mark.parametrize("change", [{"version": "w"}, {"size": 5}, {"count": 9}])
def test_parts_of_another_version_are_removed(tmp_path, capsys, change):
    write(make(tmp_path), [0, 1])
    other = make(tmp_path, **change)
    assert other.missing() == list(range(len(other.bounds)))
    assert "removed: of other settings or other inputs" in capsys.readouterr().err
    assert make(tmp_path).missing() == [0, 1, 2]


def test_wrong_lines_and_sizes_are_refused(tmp_path):
    job = make(tmp_path)
    for lines in (LINES[:3], LINES[:5], [*LINES[:4], "no break"], []):
        with pytest.raises(ValueError, match="part 0: expected 4 lines"):
            job.write(0, lines)
    for wrong in ({"count": 0}, {"size": 0}):
        with pytest.raises(ValueError, match="at least 1 item"):
            make(tmp_path, **wrong)


def test_all_processes_make_what_the_first_found_missing():
    assert resumable_parts.agreed([1, 3], 5) == [1, 3]
