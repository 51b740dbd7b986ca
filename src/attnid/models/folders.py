"""A trained model on disk: a Hugging Face folder with safetensors, or a nanoGPT checkpoint. Read as data, and written whole or not at all."""

import io
import os
import shutil
from pathlib import Path
from zipfile import is_zipfile

import torch

from ..checks import require
from ..files import read_json, write_whole
from ..layer.attention import Attention
from ..layer.latents import LatentAttention
from .architectures import Architecture, read_architecture
from .layouts import LAYOUTS, check_tensors
from .nanogpt import PREFIX, load_nanogpt, read_checkpoint
from .stacks import Stack

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
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


def open_model(path):
    """The model at a path: a folder is read as Hugging Face's, a file as nanoGPT's.

    Either has `architecture`, `layout` and `layer(i)`, attention layer i's tensors by the ends of their names, and writes itself
    with some tensors changed. FileNotFoundError where nothing is there; ValueError naming what is missing, damaged, quantised,
    pickled only, or not laid out here.
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
        """Tensors of attention layer `number`, copies, by what follows the layer's name; checked against its description."""
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

    def check_free(self, out):
        """ValueError where something is at `out`, or where its folder is not there."""
        require(
            not os.path.lexists(Path(out)),
            "out",
            os.fspath(out),
            "is there already, and nothing is overwritten",
        )
        require(
            Path(out).absolute().parent.is_dir(),
            "out",
            os.fspath(out),
            "the folder that it should lie in is not there",
        )


class Folder(_Model):
    """A Hugging Face folder: config.json and safetensors, in one file or in several with an index."""

    def __init__(self, path):
        self.path = path
        config = read_json(path / "config.json")
        for each in (config, config.get("text_config")):
            method = each.get("quantization_config") if isinstance(each, dict) else None
            require(method is None, "quantization_config", method, "quantised weights are not read")
        self.files = self._files()
        self.names = {name for names in self.files.values() for name in names}
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

    def check_free(self, out):
        """ValueError where something is at `out`, or where it lies inside the folder itself."""
        super().check_free(out)
        require(
            not Path(out).resolve().is_relative_to(self.path.resolve()),
            "out",
            str(out),
            "lies inside the model that is read",
        )

    def write(self, out, changed):
        """Write the folder to `out` with the changed tensors, name -> tensor, and its other files, but not the same weights in other files.

        Returns notes on what was left out. Errors as for check_free.
        """
        self.check_free(out)
        out = Path(out)
        others = {
            str(p.relative_to(self.path)): p
            for p in sorted(self.path.rglob("*"))
            if p.is_symlink() or not p.is_dir()
        }
        left_out = [
            name for name, p in others.items() if name not in self.files and self._is_stale(p)
        ]
        draft = out.with_name(f".{out.name}.{os.getpid()}.tmp")
        try:
            draft.mkdir()
            for name in others.keys() - self.files.keys() - set(left_out):
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(others[name], draft / name)
            for file in self.files:
                self._write_file(draft / file, file, changed)
            os.rename(draft, out)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        return [f"left out, as it may hold the old weights: {name}" for name in left_out]

    def _is_stale(self, path):
        # weights in a folder with a configuration of its own are another module's
        module = (
            path.parent != self.path
            and path.suffix != ".onnx"
            and (path.parent / "config.json").is_file()
        )
        unread = SINGLE in self.files and path == self.path / INDEX
        return (
            path.suffix in OTHER_WEIGHTS
            and not module
            or unread
            or path.is_symlink()
            and path.is_dir()
        )

    def _write_file(self, path, file, changed):
        from safetensors.torch import save_file

        with self._open(file) as opened:
            tensors = {
                name: changed[name] if name in changed else opened.get_tensor(name)
                for name in opened.keys()
            }
            save_file(tensors, path, metadata=opened.metadata())


class NanoGPT(_Model):
    """A checkpoint of nanoGPT's train.py."""

    def __init__(self, path):
        config = load_nanogpt(path).config  # checks everything
        self.path, self.checkpoint = path, read_checkpoint(path)
        self.names = {name.removeprefix(PREFIX): name for name in self.checkpoint["model"]}
        layer = Attention(config.n_embd, config.n_head, bias="qkvo" if config.bias else "")
        layers = Stack(((("self", layer), config.n_layer),))
        self._describe(Architecture(path.name, "nanogpt", layers))

    def _read(self, names):
        return {name: self.checkpoint["model"][self.names[name]].clone() for name in names}

    def write(self, out, changed):
        """Write the checkpoint to `out` with the changed tensors, name -> tensor, without the optimizer, whose state would not fit them.

        Returns notes on what was left out. Errors as for check_free.
        """
        self.check_free(out)
        model = self.checkpoint["model"]
        weights = {stored: changed.get(name, model[stored]) for name, stored in self.names.items()}
        buffer = io.BytesIO()
        torch.save(
            {key: value for key, value in self.checkpoint.items() if key != "optimizer"}
            | {"model": weights},
            buffer,
        )
        write_whole(out, buffer.getvalue())
        return (
            ["left out, as it belongs to the old weights: optimizer"]
            if "optimizer" in self.checkpoint
            else []
        )
