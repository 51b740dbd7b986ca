"""Files, written whole or not at all."""

import json
import os
from pathlib import Path

from .checks import require


def write_whole(path, content):
    """Write bytes to a path by way of a draft beside it: whoever reads the path finds all of them or what was there before."""
    path = Path(path)
    draft = path.with_name(
        f".{path.name}.{os.getpid()}.tmp"
    )  # what a kill leaves behind is hidden, and nobody reads it
    try:
        with open(draft, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def read_json(path):
    """The object, a dict, in a JSON file. ValueError naming the path where it holds anything else."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # of the JSON, or of its characters
        raise ValueError(f"path={os.fspath(path)!r}: is not JSON ({error})") from None
    require(
        isinstance(content, dict), "path", os.fspath(path), "does not hold an object with fields"
    )
    return content
