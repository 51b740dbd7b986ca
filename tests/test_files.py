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


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "x" * 250 + ".json"])
def test_a_name_may_be_as_long_as_the_system_allows(tmp_path, name):
    write_whole(tmp_path / name, b"whole")
    assert os.listdir(tmp_path) == [name] and (tmp_path / name).read_bytes() == b"whole"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_a_full_disk_is_named_with_the_path_that_was_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "f"
    monkeypatch.setattr(files.os, "fsync", lambda _: os.write(os.open("/dev/full", 1), b"x"))
    with pytest.raises(OSError, match=f"^path='{path}': is not written: .*No space left") as full:
        write_whole(path, b"new")
    assert ".tmp" not in str(full.value) and os.listdir(tmp_path) == []


def test_a_folder_is_drafted_and_named_as_a_file_is(tmp_path):
    with pytest.raises(
        OSError, match=f"^path='{tmp_path / 'f'}': .*: '{tmp_path / 'f' / 'part'}'$"
    ):
        with files.draft_of(tmp_path / "f") as draft:
            (draft / "part").mkdir(parents=True)
            (draft / "part").write_bytes(b"")
    assert os.listdir(tmp_path) == []
    with files.draft_of(tmp_path / "f") as draft:
        (draft / "part").mkdir(parents=True)
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    "content, why",
    [
        ("[" * 200_000, "is nested too deeply"),
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "is nested too deeply"),
        ("{", "is not JSON"),
        ("9" * 5000, "is not JSON"),
        ("\xff", "is not JSON"),
        ("3", "does not hold an object"),
    ],
)
def test_what_is_no_object_in_json_is_named(tmp_path, content, why):
    (tmp_path / "f").write_bytes(content.encode("latin1"))
    with pytest.raises(ValueError, match=f"^path='{tmp_path / 'f'}': {why}"):
        files.read_json(tmp_path / "f")


# ---- checkpoints
