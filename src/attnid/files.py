"""Files, written whole or not at all."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from .checks import require


@contextmanager
def draft_of(path):
    """A hidden path beside `path` for a file or a folder, which becomes `path` at the end; on an
    error nothing is left of it.

    Its name is no longer than a file system allows, whatever that of `path` is. OSError naming
    `path` where it cannot be written.
    """
    path = Path(path)
    start = os.fsencode(path.name)[:100].decode(errors="ignore")
    draft = path.with_name(f".{start}.{os.getpid()}.tmp")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException as error:
        if draft.is_dir():
            shutil.rmtree(draft, ignore_errors=True)
        else:
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            why = str(error).replace(str(draft), str(path))
            raise type(error)(f"path={str(path)!r}: is not written: {why}") from None
        raise


def write_whole(path, content):
    """Write bytes to a path: whoever reads it finds all of them or what was there before. Errors as
    for draft_of.
    """
    with draft_of(path) as draft, open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def read_json(path):
    """The object in a JSON file, a dict. ValueError naming the path where it has another."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError(f"path={os.fspath(path)!r}: is nested too deeply to be read") from None
    except ValueError as error:  # of the JSON, or of its characters
        raise ValueError(f"path={os.fspath(path)!r}: is not JSON ({error})") from None
    require(
        isinstance(content, dict), "path", os.fspath(path), "does not hold an object with fields"
    )
    return content
