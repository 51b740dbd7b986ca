"""Files, written whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path, content):
    """Write bytes to a path by way of a draft beside it: whoever reads the path finds all of them or what was there before."""
    path = Path(path)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise
