"""Files of a sweep's report: the same bytes for the same values, and nothing lost."""

import csv
import io
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t5x_style.configuration.gin_reader import parse_value
from t5x_style.sweeps import figure, report, standings
from t5x_style.sweeps.trials import Record, Stages
from tests.t5x_style.sweeps import made_results as made

NAMES = ("table.csv", "configurations.csv", "report.md")
PRUNED = Record("pruned", 0.3, 10, ((10, 0.3),), "pruner median at step 10")
FAILED = Record("failed", reason="loss is nan | see\n<log> (x/log.txt)")
TABLE = [
    ({"RATE": 0.1, "KIND": "cls"}, [0.1 + 0.2, 0.31, 0.32]),
    ({"RATE": 1e-05, "KIND": "a|b<c"}, [0.4, 0.41, 0.43]),
    ({"RATE": 0.3}, [0.2, FAILED, None]),
    ({"RATE": 0.1, "KIND": None}, [PRUNED, PRUNED, PRUNED]),
    ({"RATE": 0.2, "KIND": (1, {"a": True})}, [0.35, 0.36, 0.38]),
]


def read(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def page(table=TABLE, command="", **others):
    return report.texts(made.results(table, **others), command)["report.md"]


@st.composite
def tables(draw):
    number = st.floats(-1e6, 1e6)
    record = st.one_of(
        st.builds(made.done, number, st.none() | st.integers(0, 9)),
        st.builds(Record, st.sampled_from(["failed", "pruned", "running"]), reason=st.text()),
        st.none(),
    )
    value = st.one_of(st.none(), st.booleans(), st.integers(), number, st.text(max_size=9))
    columns = draw(st.lists(value, min_size=1, max_size=5, unique_by=repr))
    rows = st.lists(record, min_size=3, max_size=3)
    return [({"RATE": one, "KIND": "x"} if one else {"RATE": one}, draw(rows)) for one in columns]


@settings(max_examples=60, deadline=None)
@given(tables(), st.booleans(), st.integers())
def test_order_time_and_attempts_change_no_byte(table, larger_is_better, seed):
    found = made.results(table, larger_is_better=larger_is_better, earlier=(3,))
    texts = report.texts(found, "kennel run best.gin")
    assert report.texts(made.shuffled(found, seed), "kennel run best.gin") == texts
    for line in read(texts["table.csv"]):
        trial = next(one for one in found.trials if one.name == line["trial"])
        record = found.record(trial)
        assert line["value"] == ("" if record.value is None else repr(record.value))
        assert parse_value(line["RATE"]) == trial.configuration.values["RATE"]
        assert line["status"] == record.status and None not in line


def test_files_are_whole_and_repeat(tmp_path):
    found = made.results(TABLE)
    for folder, results in (("a", found), ("b", made.shuffled(found, 5))):
        (tmp_path / folder).mkdir()
        report.write(results, tmp_path / folder, "kennel run best.gin")
    expected = {*NAMES, "times.csv", "report.png"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == expected
    for name in NAMES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a/times.csv").read_bytes() != (tmp_path / "b/times.csv").read_bytes()


def test_a_failure_leaves_the_old_file_alone(tmp_path, monkeypatch):
    def fails(results, png):
        png.write_bytes(b"half")
        raise RuntimeError("no font")

    monkeypatch.setattr(figure, "draw", fails)
    (tmp_path / "report.png").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="no font"):
        report.write(made.results(TABLE), tmp_path, "")
    assert (tmp_path / "report.png").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {*NAMES, "times.csv", "report.png"}


def test_the_table_has_every_trial_and_all_digits():
    lines = read(report.texts(made.results(TABLE), "")["table.csv"])
    assert len(lines) == 15
    first, failed = lines[0], lines[7]
    assert first == {
        "trial": "default-seed1", "configuration": "default", "seed": "1", "status": "done",
        "value": "0.30000000000000004", "step": "", "reason": "", "RATE": "0.1", "KIND": "'cls'",
    }  # fmt: skip
    assert (failed["reason"], failed["KIND"]) == ("loss is nan | see <log> (x/log.txt)", "")
    assert parse_value(lines[-1]["KIND"]) == (1, {"a": True})


def test_configurations_have_all_statistics():
    found = made.results(TABLE)
    lines = read(report.texts(found, "")["configurations.csv"])
    rows = standings.rows(found)
    assert [line["configuration"] for line in lines] == [row.name for row in rows]
    assert [line["rank"] for line in lines] == ["1", "2", "3", "", ""]
    assert float(lines[0]["p_corrected"]) == rows[0].corrected
    low, high = rows[0].difference.interval
    assert (float(lines[0]["difference_low"]), float(lines[0]["difference_high"])) == (low, high)
    assert lines[-1]["mean"] == "" and lines[-1]["reason"] == "none of its trials is done"


def test_times_are_in_a_file_of_their_own():
    found = made.results(
        [({"RATE": 1}, [made.done(0.5, seconds=7.25, attempts=3)])], seeds=(),
        seconds=Stages(90.0, {"default": 2.5}),
    )  # fmt: skip
    assert report.times(found).splitlines() == [
        "trial,seconds,attempts,device_seconds", "default,7.25,3,2.5", "shared stages,,,90.0"
    ]  # fmt: skip
    for text in report.texts(found, "").values():
        assert "7.25" not in text and "90.0" not in text


def test_an_axis_may_have_the_name_of_a_column():
    found = made.results([({"seed": 5, "mean": 6}, [0.5])], seeds=(), axes=("seed", "mean"))
    texts = report.texts(found, "")
    (line,) = read(texts["table.csv"])
    assert (line["seed"], line["axis seed"], line["mean"]) == ("", "5", "6")
    assert read(texts["configurations.csv"])[0]["axis mean"] == "6"


def test_the_page_names_the_winner_and_how_to_repeat_it():
    text = page(command="kennel run best.gin")
    assert text.startswith("# Sweep rates\n")
    assert "Trials: 15 (1 queued, 1 failed, 3 pruned, 10 done)" in text
    assert "with a mean of 0.4133 over 3 seeds: it is better than the default (corrected p" in text
    assert "it differs from the second" in text and "is optimistic" in text
    assert "```bash\nkennel run best.gin\n```" in text and "![](report.png)" in text
    assert "Holm's method corrects their p-values for 2 tests" in text
    assert "`times.csv`" in text and text.endswith("took.\n") and "preliminary" in text


def test_every_line_of_the_table_has_as_many_cells():
    lines = [line for line in page().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(TABLE)
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {12}
    assert "a\\|b&lt;c" in lines[2] and "| not tested (none of its trials is done) |" in lines[-1]


def test_failed_and_pruned_trials_have_reasons():
    text = page()
    assert "## Failed trials" in text and "loss is nan | see &lt;log>" in text
    assert "step 10: pruner median at step 10" in text
    text = page([({"RATE": 1}, [0.1])], seeds=())
    assert "## Failed" not in text and "## Pruned" not in text


def test_a_page_without_a_winner_says_so():
    text = page([({"RATE": 1}, [None, None, Record("running")]), ({"RATE": 2}, [FAILED] * 3)])
    assert "There is no winner" in text and "optimistic" not in text and "```" not in text
    assert "No configuration was tested" in text


@pytest.mark.parametrize(("best", "said"), [(0.1, "largest"), (0.001, "smallest"), (0.01, "")])
def test_a_winner_at_the_end_of_its_axis_is_said(best, said):
    table = [
        ({"RATE": rate, "KIND": {"a": 1}}, [0.5 + 0.2 * (rate == best)] * 3)
        for rate in (0.001, 0.01, 0.1)
    ]
    page = report.texts(made.results(table), "")["report.md"]
    assert (f"the {said} `RATE` that was tried: add values beyond {best}" in page) == bool(said)
    drawn = report.texts(made.results(table, drawn=frozenset({"RATE"})), "")["report.md"]
    assert "that was tried" not in drawn


def test_one_seed_is_no_test():
    text = page([({"RATE": 1}, [0.5]), ({"RATE": 2}, [0.75])], seeds=())
    assert "(RATE = 2), with 0.7500: it was not tested against the default (one seed)" in text
    assert "not tested against the second, `default` (fewer than two common seeds)" in text
    assert "with the recipe's seed" in text


def test_configurations_of_an_earlier_file_are_marked():
    text = page(TABLE, earlier=(1,))
    assert "which is not in the sweep file any more" in text
    assert text.count("†") == 2 and "† not in the sweep file any more" in text
    assert "†" not in page()


def test_two_hundred_configurations_give_a_readable_page():
    table = [({"RATE": rate}, [PRUNED if rate > 50 else 0.1]) for rate in range(200)]
    text = page(table, seeds=())
    assert sum(line.startswith("|") for line in text.splitlines()) == 202
    assert "- and 129 more, see `table.csv`" in text
    assert max(map(len, text.splitlines())) < 600


@pytest.mark.parametrize(
    "value, text",
    [(0.43126, "0.4313"), (12.3456, "12.346"), (123456.7, "123457"), (3.21e-7, "0.0000003210"),
     (0.0, "0.0000"), (-2.5, "-2.5000")],
)  # fmt: skip
def test_numbers_have_as_many_decimals_as_they_need(value, text):
    assert f"with {text}:" in page([({"RATE": 1}, [value])], seeds=())
