"""Files that are whole or absent."""

import os

import pytest
from kills import kill_self, killed

from attnid import files
from attnid.files import write_whole

# ---- whole or absent


def test_write_replaces_and_leaves_no_draft(tmp_path):
    for content in (b"one", b"", b"another" * 1000):
        write_whole(tmp_path / "f", content)
        assert (tmp_path / "f").read_bytes() == content and os.listdir(tmp_path) == ["f"]


def test_written_file_is_as_readable_as_any(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "f", b"")
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("where", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_interrupted_write_leaves_what_was_there(tmp_path, monkeypatch, where, error):
    write_whole(tmp_path / "f", b"old")

    def stop(*_):
        raise error

    monkeypatch.setattr(files.os, where, stop)
    with pytest.raises(error):
        write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old" and os.listdir(tmp_path) == ["f"]


def killed_write(path, where):
    setattr(files.os, where, kill_self)
    write_whole(path, b"new")


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_killed_write_leaves_what_was_there(tmp_path, where):
    write_whole(tmp_path / "f", b"old")
    assert killed(killed_write, tmp_path / "f", where)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert all(
        name == "f" or name[0] == "." and name.endswith(".tmp") for name in os.listdir(tmp_path)
    )
    write_whole(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
