"""The account as a table and as a line."""

from t5x_style.goodput import table
from t5x_style.goodput.attempts import PARTS, Attempt, Spent, total

PLAIN = Spent(
    {"step": 150.0, "input": 20.0, "start": 20.0, "compile": 9.6, "evaluation": 0.4}, 200.0
)
RESTARTED = total(
    [
        Attempt(1000.0, 1040.0, 0, 20, {"start": 10.0, "step": 30.0}, {}),
        Attempt(1050.0, 1100.0, 15, 40, {"step": 30.0}, {"start": 12.0, "step": 8.0}),
    ]
)


def test_the_line_has_goodput_then_the_other_parts():
    said = "75% of 200 s computed steps (input wait 10%, start-up 10%, compile 5%)"
    assert table.line(PLAIN) == said
    assert table.line(Spent({"step": 3.0}, 3.0)) == "100% of 3 s computed steps"
    assert table.line(RESTARTED) == (
        "60% of 100 s computed steps (start-up 10%, lost to restarts 30%); 1 restart: 10.0 s "
        "without a process, 20.0 s to the first new step (5 steps twice)"
    )


def test_the_table_has_every_part_their_sum_and_the_wall_time():
    lines = table.markdown(PLAIN)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    assert [row[0] for row in rows[2:-1]] == list(PARTS.values())
    assert rows[2] == ["step", "150.0", "75.0%"] and rows[-1] == ["**sum**", "200.0", "100.0%"]
    assert lines[-2] == "Goodput, the share of steps: 75.0%. Wall time 200.0 s."
    assert table.markdown(RESTARTED)[-2].endswith("to the first new step (5 steps twice).")


def test_the_process_that_waited_longest_is_named():
    assert table.markdown(PLAIN, (3, 31.25))[-2].endswith(
        "Process 3 waited longest for input: 31.2 s."
    )


def test_a_clock_that_was_set_is_reported():
    assert "is not the sum" in table.markdown(Spent({"step": 90.0}, 100.0))[-2]
    assert "is not the sum" not in table.markdown(Spent({"step": 99.5}, 100.0))[-2]


def test_no_time_at_all():
    assert table.line(Spent({}, 0.0)) == "0% of 0 s computed steps"
    assert Spent({}, 0.0).goodput == 0.0
