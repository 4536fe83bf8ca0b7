"""Progress in a log: a line now and then, and nothing of what is soon done."""

import io
import sys

import pytest

from t5x_style.distributed import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, seconds: float) -> str:
    monkeypatch.setattr(progress, "SECONDS", seconds)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress(2000, "encode", "texts") as bar:
        for _ in range(2):
            bar.set_postfix_str("900 tokens/s", refresh=False)
            bar.update(1000)
    return stream.getvalue()


def test_a_log_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = written(monkeypatch, io.StringIO(), 0.0)
    assert "encode: 1,000 of 2,000 texts, left " in lines and ", 900 tokens/s\n" in lines
    assert "\r" not in lines and "\n\n" not in lines and lines.endswith("\n")


def test_a_log_hears_nothing_of_a_short_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    assert written(monkeypatch, io.StringIO(), 60.0) == ""


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\r" in written(monkeypatch, Terminal(), 60.0)


def test_other_processes_are_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.jax, "process_index", lambda: 1)
    assert written(monkeypatch, io.StringIO(), 0.0) == ""
