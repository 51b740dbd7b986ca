"""The files beside a model's weights: which of them go along when the weights change, and which
would not fit any more.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ..checks import require

OTHER_WEIGHTS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".pth",
    ".ckpt",
    ".h5",
    ".msgpack",
    ".onnx",
    ".gguf",
    ".npz",
    ".ot",
)
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
# files that say what was done to a folder's weights
REMARK_FILE, ALIGNED_FILE = "REDUCED.txt", "ALIGNED.txt"

# why a file is left out
OLD_WEIGHTS, A_LINK = "as it may hold the old weights", "as it is a link to a folder"
AN_ADAPTER = "as it was made for the old weights"


@dataclass(frozen=True)
class Companions:
    """The files of a folder besides its weights, by their names in it: the path of those that are
    copied, and why the others are left out.
    """

    folder: Path
    copied: dict
    left_out: dict

    @property
    def adapters(self):
        """Names of the files of adapters (LoRA and its like), which were made for the weights as
        they are.
        """
        return [name for name, why in self.left_out.items() if why == AN_ADAPTER]

    @property
    def notes(self):
        """What is left out, and what is copied from where links lead out of the folder."""
        notes = [f"left out, {why}: {name}" for name, why in self.left_out.items()]
        home = self.folder.resolve()
        led = [n for n, path in self.copied.items() if not path.resolve().is_relative_to(home)]
        return notes + ([f"copied from where links lead: {', '.join(led)}"] if led else [])

    def check_readable(self):
        """ValueError naming a file to be copied that cannot be: a link that leads nowhere, or what
        is no file.
        """
        for path in self.copied.values():
            readable = path.is_file() and os.access(path, os.R_OK)
            require(readable, "path", str(path), "is no file that can be read and copied")


def find_companions(folder, weights):
    """The Companions of the files `weights` in a folder. Links to files are followed, links to
    folders are not.
    """
    copied, left_out = {}, {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if (
            path.is_dir()
            and not path.is_symlink()
            or name in weights
            or name in (REMARK_FILE, ALIGNED_FILE)
        ):
            continue
        why = _why_left_out(folder, weights, path)
        if why is None:
            copied[name] = path
        else:
            left_out[name] = why
    return Companions(folder, copied, left_out)


def _why_left_out(folder, weights, path):
    # weights in a folder with a configuration of its own are another module's
    module = path.parent != folder and (path.parent / "config.json").is_file()
    if path.name.startswith("adapter_"):
        return AN_ADAPTER
    if path.suffix in OTHER_WEIGHTS and (path.suffix == ".onnx" or not module):
        return OLD_WEIGHTS
    if SINGLE in weights and path == folder / INDEX:
        return OLD_WEIGHTS
    return A_LINK if path.is_symlink() and path.is_dir() else None
