"""A trained model on disk: a Hugging Face folder with safetensors, or a nanoGPT checkpoint. Read as
data, and written whole or not at all.
"""

import io
import os
import shutil
from pathlib import Path
from zipfile import is_zipfile

import torch

from ..checks import require
from ..files import draft_of, read_json, write_whole
from ..layer.description import Attention
from ..layer.latents import LatentAttention
from .architectures import Architecture, read_architecture
from .companions import INDEX, REMARK_FILE, SINGLE, find_companions
from .layouts import LAYOUTS, check_tensors
from .nanogpt import read_nanogpt
from .stacks import Stack


def open_model(path):
    """The model at a path: a folder is read as Hugging Face's, a file as nanoGPT's.

    Either has `architecture`, `layout`, `adapters` and `layer(i)`, attention layer i's tensors by
    the ends of their names, and writes itself with some tensors changed. FileNotFoundError where
    nothing is there; ValueError naming what is missing, damaged, quantised, pickled only, or not
    laid out here.
    """
    require(isinstance(path, (str, os.PathLike)), "path", path, "must be a string or a path")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file or folder")
    whole = path.is_dir() or path.suffix not in (".safetensors", ".json") or is_zipfile(path)
    require(
        whole,
        "path",
        str(path),
        "is one file of a model: give the folder that holds it, with its config.json",
    )
    return Folder(path) if path.is_dir() else NanoGPT(path)


class _Model:
    def _describe(self, architecture):
        self.architecture = architecture
        latent = any(isinstance(layer, LatentAttention) for _, layer in architecture.kinds)
        require(
            architecture.model_type in LAYOUTS,
            "model_type",
            architecture.model_type,
            "its latents are counted, but its weights are not read"
            if latent
            else f"weights are read of {', '.join(LAYOUTS)}",
        )
        self.layout = LAYOUTS[architecture.model_type]
        self.prefix = self.layout.prefix_in(self.names)
        beyond = self._stem(len(architecture.layers))
        more = [name for name in self.names if name.startswith(beyond)]
        require(
            not more,
            "tensors",
            min(more, default=None),
            f"is beyond the {len(architecture.layers)} layers that are described",
        )

    def _stem(self, layer):
        return f"{self.prefix}{self.layout.layer.format(layer)}."

    def layer(self, number):
        """Tensors of attention layer `number`, copies, by what follows the layer's name; checked
        against its description.
        """
        stem = self._stem(number)
        tensors = self._read(name for name in self.names if name.startswith(stem))
        tensors = {name.removeprefix(stem): tensor for name, tensor in tensors.items()}
        try:
            check_tensors(self.layout, self.architecture.layers[number][1], tensors)
        except ValueError as error:
            raise ValueError(f"layer {number} ({stem}): {error}") from None
        return tensors

    def full_names(self, number, tensors):
        """The tensors of a layer by their names in the file."""
        return {self._stem(number) + name: tensor for name, tensor in tensors.items()}

    def block(self, number):
        """What stands before the names of all tensors of layer `number`, its attention's and those
        beside it.
        """
        return self.prefix + self.layout.layer[: self.layout.layer.index("{}")] + f"{number}."

    def beside(self, number):
        """Tensors of layer `number` beside its attention, copies, by what follows the layer's
        name.
        """
        stem, attention = self.block(number), self._stem(number)
        names = [n for n in self.names if n.startswith(stem) and not n.startswith(attention)]
        return {name.removeprefix(stem): t for name, t in self._read(names).items()}

    def outside(self):
        """Name without the family's prefix -> name in the file, of every tensor of no layer."""
        blocks = tuple(self.block(number) for number in range(len(self.architecture.layers)))
        names = sorted(name for name in self.names if not name.startswith(blocks))
        return {name.removeprefix(self.prefix): name for name in names}

    def read(self, name):
        """The tensor of that name in the file, a copy."""
        return self._read([name])[name]

    def check_free(self, out):
        """ValueError where something is at `out`, or where its folder is not there, not to be
        written in, or too full.
        """
        folder = Path(out).absolute().parent
        require(
            not os.path.lexists(out),
            "out",
            os.fspath(out),
            "is there already, and nothing is overwritten",
        )
        require(
            folder.is_dir(), "out", os.fspath(out), "the folder that it should lie in is not there"
        )
        require(
            os.access(folder, os.W_OK | os.X_OK),
            "out",
            os.fspath(out),
            "the folder that it should lie in cannot be written in",
        )
        free = shutil.disk_usage(folder).free
        require(
            self.bytes_written <= free,
            "out",
            os.fspath(out),
            f"needs {self.bytes_written:,} bytes, and its disk has {free:,} left",
        )


class Folder(_Model):
    """A Hugging Face folder: config.json and safetensors, one file or several with an index."""

    def __init__(self, path):
        self.path = path
        self.config = config = read_json(path / "config.json")
        for each in (config, config.get("text_config")):
            method = each.get("quantization_config") if isinstance(each, dict) else None
            require(method is None, "quantization_config", method, "quantised weights are not read")
        self.files = self._files()
        self.names = {name for names in self.files.values() for name in names}
        self.companions = find_companions(path, self.files)
        self.adapters = self.companions.adapters
        self._describe(read_architecture(path))

    def _files(self):
        # file -> names of the tensors in it; transformers too looks for a single file first
        if (self.path / INDEX).is_file() and not (self.path / SINGLE).is_file():
            listed = read_json(self.path / INDEX).get("weight_map")
            good = (
                isinstance(listed, dict)
                and listed
                and all(isinstance(f, str) and Path(f).name == f for f in listed.values())
            )
            require(
                good,
                "weight_map",
                type(listed).__name__,
                f"of {INDEX} must map each tensor to a file beside it",
            )
            files = {file: set() for file in sorted(set(listed.values()))}
            for name, file in listed.items():
                files[file].add(name)
        else:
            pickled = sorted(p.name for p in self.path.glob("*.bin"))
            why = f"has no {SINGLE}" + (
                f"; {pickled[0]} is pickled, which is not read: save it as safetensors"
                if pickled
                else ""
            )
            require((self.path / SINGLE).is_file(), "path", str(self.path), why)
            files = {SINGLE: None}
        for file in files:
            with self._open(file) as opened:
                stored = set(opened.keys())
            files[file] = stored if files[file] is None else files[file]
            require(
                files[file] == stored,
                file,
                min(files[file] ^ stored, default=None),
                f"is in one of the file and {INDEX} only",
            )
        return files

    def _open(self, file):
        from safetensors import SafetensorError, safe_open

        require(
            (self.path / file).is_file(),
            "path",
            str(self.path / file),
            "is listed in the index, and not there",
        )
        try:
            return safe_open(self.path / file, framework="pt")
        except SafetensorError as error:
            raise ValueError(
                f"path={str(self.path / file)!r}: is damaged, or no safetensors file ({error})"
            ) from None

    def _read(self, names):
        wanted, found = set(names), {}
        for file, inside in self.files.items():
            if wanted & inside:
                with self._open(file) as opened:
                    found |= {
                        name: opened.get_tensor(name).clone() for name in sorted(wanted & inside)
                    }
        return found

    @property
    def bytes_written(self):
        """How many bytes `write` writes."""
        weights = [self.path / file for file in self.files]
        return sum(path.stat().st_size for path in [*weights, *self.companions.copied.values()])

    def check_free(self, out):
        """Errors as for other models, and where `out` lies inside the folder itself, or a file to
        be copied cannot be read.
        """
        self.companions.check_readable()
        super().check_free(out)
        require(
            not Path(out).resolve().is_relative_to(self.path.resolve()),
            "out",
            str(out),
            "lies inside the model that is read",
        )

    def write(self, out, changed, remark, *, remark_file=REMARK_FILE):
        """Write the folder to `out` with the changed tensors, name -> tensor, its other files, and
        the remark as a file of its own, by this name.

        Returns notes: what was left out, as it would not fit the changed weights, and which links
        led out of the folder. Errors as for check_free, and OSError naming `out` where it cannot be
        written.
        """
        self.check_free(out)
        with draft_of(out) as draft:
            draft.mkdir()
            for name, path in self.companions.copied.items():
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, draft / name)
            for file in self.files:
                self._write_file(draft / file, file, changed)
            (draft / remark_file).write_text(remark + "\n", encoding="utf-8")
        return self.companions.notes

    def _write_file(self, path, file, changed):
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        with self._open(file) as opened:
            tensors = {
                name: changed[name] if name in changed else opened.get_tensor(name)
                for name in opened.keys()
            }
            try:
                save_file(tensors, path, metadata=opened.metadata())
            except SafetensorError as error:  # what it makes of a full disk
                raise OSError(str(error)) from None


class NanoGPT(_Model):
    """A checkpoint of nanoGPT's train.py."""

    adapters: tuple = ()
    config: dict = {}

    def __init__(self, path):
        self.path, self.saved = path, read_nanogpt(path)
        self.names, config = self.saved.stored, self.saved.config
        layer = Attention(config.n_embd, config.n_head, bias="qkvo" if config.bias else "")
        layers = Stack(((("self", layer), config.n_layer),))
        self._describe(Architecture(path.name, "nanogpt", layers))

    @property
    def bytes_written(self):
        """How many bytes `write` writes, at most."""
        return self.path.stat().st_size

    def _read(self, names):
        return {
            name: self.saved.weights[name].clone() for name in names if name in self.saved.weights
        }

    def write(self, out, changed, remark, *, remark_file=REMARK_FILE):
        """Write the checkpoint to `out` with the changed tensors, name -> tensor, and the remark
        under a key of its own, but without the optimizer, whose state would not fit them.

        Returns notes on what was left out. Errors as for check_free, and OSError naming `out` where
        it cannot be written.
        """
        self.check_free(out)
        content = {key: value for key, value in self.saved.content.items() if key != "optimizer"}
        old = content["model"]
        new = {stored: changed.get(name, old[stored]) for name, stored in self.names.items()}
        buffer = io.BytesIO()
        torch.save(content | {"model": new, "remark": remark}, buffer)
        write_whole(out, buffer.getvalue())
        left_out = "optimizer" in self.saved.content
        return ["left out, as it belongs to the old weights: optimizer"] * left_out
