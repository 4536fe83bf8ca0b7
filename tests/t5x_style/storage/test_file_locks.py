"""Locks of files, also on a disk that has none."""

import errno
import fcntl
import os

import pytest

from t5x_style.storage import file_locks


def failing(monkeypatch, number: int) -> None:
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_a_warning_says_so_once(tmp_path, monkeypatch, capsys, number) -> None:
    failing(monkeypatch, number)
    for _ in range(2):
        with file_locks.locked(tmp_path / "a.lock", lambda: pytest.fail("nobody holds it")):
            assert (tmp_path / "a.lock").exists()
        assert not (tmp_path / "a.lock").exists()
    assert capsys.readouterr().err.count("its disk has no locks") == 1


def test_another_error_is_raised(tmp_path, monkeypatch) -> None:
    failing(monkeypatch, errno.EIO)
    lock = file_locks.locked(tmp_path / "a.lock", lambda: None)
    with pytest.raises(OSError, match="Input/output"), lock:
        pytest.fail("it holds nothing")
