"""Files of the book that are made, not edited."""

from attnid.files import write_whole


def keep(path, content):
    """Write the bytes where they do not stand yet."""
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content)
