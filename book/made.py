"""Files of the book that are made, not edited."""

import os


def keep(path, content):
    """Write the bytes where they do not stand yet: whole, by way of a draft beside them, or not at all."""
    if not path.exists() or path.read_bytes() != content:
        draft = path.with_name(f".{path.name}.tmp")
        draft.write_bytes(content)
        os.replace(draft, path)
