"""A checkpoint that nanoGPT saved is read as data, and everything wrong in one is named."""

import math
import random
import traceback
import zipfile

import numpy as np
import pytest
import torch
from small_gpts import CONFIG, randomised, tokens

from attnid.models.nanogpt import load_nanogpt, read_nanogpt
from attnid.network.gpt import GPT, GPTConfig


def checkpoint(model, prefix="", **args):
    config = model.config
    model_args = (
        dict(
            n_layer=config.n_layer,
            n_head=config.n_head,
            n_embd=config.n_embd,
            block_size=config.block_size,
            bias=config.bias,
            vocab_size=config.vocab_size,
            dropout=config.dropout,
        )
        | args
    )
    weights = {prefix + name: p.clone() for name, p in model.state_dict().items()}
    return {
        "model": weights,
        "model_args": model_args,
        "optimizer": {"state": {}, "param_groups": []},
        "iter_num": 5,
        "best_val_loss": torch.tensor(1.5),
        "config": {"out_dir": "out", "compile": True},
    }


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "_orig_mod.module."])
@pytest.mark.parametrize("bias", [False, True])
def test_checkpoint_loads(tmp_path, prefix, bias):
    model = randomised(
        GPTConfig(11, 6, 2, 3, 12, bias=bias, dropout=0.2), dtype=torch.float32
    ).eval()
    saved = checkpoint(model, prefix)
    saved["model"][prefix + "transformer.h.0.attn.bias"] = torch.ones(
        1, 1, 6, 6
    ).tril()  # a mask, as old versions saved it
    torch.save(saved, tmp_path / "ckpt.pt")
    loaded = load_nanogpt(tmp_path / "ckpt.pt")
    assert loaded.config == model.config and not loaded.training
    assert loaded.lm_head.weight is loaded.transformer.wte.weight
    assert torch.equal(loaded(tokens())[0], model(tokens())[0])


@pytest.mark.parametrize("bias", [False, True])
def test_early_checkpoint_does_not_say_bias_or_dropout(tmp_path, bias):
    saved = checkpoint(GPT(GPTConfig(11, 6, 2, 3, 12, bias=bias)))
    del saved["model_args"]["bias"], saved["model_args"]["dropout"]
    torch.save(saved, tmp_path / "ckpt.pt")
    assert load_nanogpt(tmp_path / "ckpt.pt").config.bias is bias


def renamed(path, old, new):
    """Rewrite a checkpoint with other bytes in its pickle."""
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in parts.items():
            assert old in content or not name.endswith("data.pkl")
            file.writestr(name, content.replace(old, new) if name.endswith("data.pkl") else content)


@pytest.mark.parametrize("number", [np.float64, np.float32, np.float16, np.int64, np.bool_])
@pytest.mark.parametrize("home", ["numpy._core", "numpy.core"])
def test_numbers_of_numpy_are_read(tmp_path, number, home):
    """As in stock files, whose best_val_loss is one; NumPy 1 and 2 call it by other names."""
    saved = checkpoint(GPT(CONFIG)) | {"best_val_loss": number(1)}
    torch.save(saved, tmp_path / "ckpt.pt")
    renamed(tmp_path / "ckpt.pt", b"cnumpy._core.multiarray\n", f"c{home}.multiarray\n".encode())
    before = torch.serialization.get_safe_globals()
    found = read_nanogpt(tmp_path / "ckpt.pt").content["best_val_loss"]
    assert found == 1 and type(found) is number
    assert torch.serialization.get_safe_globals() == before


def test_the_tied_map_may_be_left_out(tmp_path):
    model = randomised(CONFIG, dtype=torch.float32).eval()
    saved = checkpoint(model, "module.")
    del saved["model"]["module.lm_head.weight"]
    torch.save(saved, tmp_path / "ckpt.pt")
    assert torch.equal(load_nanogpt(tmp_path / "ckpt.pt")(tokens())[0], model(tokens())[0])


def spoil_missing(saved):
    del saved["model"]["transformer.h.1.mlp.c_fc.weight"]


def spoil_shape(saved):
    saved["model"]["transformer.wpe.weight"] = torch.zeros(5, 12)


def spoil_type(saved):
    saved["model"]["transformer.wpe.weight"] = [0.0]


def spoil_unknown(saved):
    saved["model"]["transformer.h.2.ln_1.weight"] = torch.ones(12)


def spoil_tie(saved):
    saved["model"]["lm_head.weight"] = saved["model"]["lm_head.weight"] + 1


def spoil_args(saved):
    del saved["model_args"]["n_head"]


def spoil_size(saved):
    saved["model_args"]["n_embd"] = 0


def spoil_model(saved):
    del saved["model"]


def spoil_nothing_left(saved):
    saved.clear()


def spoil_nan(saved):
    saved["model"]["transformer.wpe.weight"][0, 0] = math.nan


def spoil_infinite(saved):
    saved["model"]["transformer.ln_f.bias"] = torch.full(
        (12,), 1e300, dtype=torch.float64
    )  # not in float32


def spoil_integer(saved):
    saved["model"]["transformer.ln_f.weight"] = torch.ones(12, dtype=torch.int64)


def spoil_complex(saved):
    saved["model"]["transformer.ln_f.weight"] = torch.ones(12, dtype=torch.complex64)


def spoil_sparse(saved):
    saved["model"]["transformer.wpe.weight"] = torch.zeros(6, 12).to_sparse()


def spoil_meta(saved):
    saved["model"]["transformer.wpe.weight"] = torch.zeros(6, 12, device="meta")


def spoil_twice(saved):
    saved["model"]["_orig_mod.transformer.ln_f.weight"] = torch.ones(12)


def spoil_name(saved):
    saved["model"][3] = torch.ones(12)


def spoil_vocabulary(saved):
    saved["model_args"]["vocab_size"] = 10**9


def spoil_layers(saved):
    saved["model_args"]["n_layer"] = 10**9


def spoil_expanded(saved):
    spoil_vocabulary(saved)
    saved["model"]["transformer.wte.weight"] = saved["model"]["lm_head.weight"] = torch.zeros(
        1, 1
    ).expand(10**9, 12)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (spoil_missing, "transformer.h.1.mlp.c_fc.weight.*missing"),
        (spoil_shape, r"transformer.wpe.weight=\(5, 12\)"),
        (spoil_type, "transformer.wpe.weight='list'"),
        (spoil_unknown, "transformer.h.2.ln_1.weight"),
        (spoil_tie, "lm_head.weight"),
        (spoil_args, "n_head"),
        (spoil_size, "n_embd=0"),
        (spoil_model, "'model'"),
        (spoil_nothing_left, "'model'"),
        (spoil_nan, "transformer.wpe.weight=nan.*finite"),
        (spoil_infinite, "transformer.ln_f.bias=inf.*finite"),
        (spoil_integer, "transformer.ln_f.weight=torch.int64"),
        (spoil_complex, "transformer.ln_f.weight=torch.complex64"),
        (spoil_sparse, "transformer.wpe.weight.*stored"),
        (spoil_meta, "transformer.wpe.weight.*stored"),
        (spoil_twice, "model='transformer.ln_f.weight'.*twice"),
        (spoil_name, "model=3"),
        (spoil_vocabulary, r"transformer.wte.weight=\(11, 12\)"),
        (spoil_layers, "transformer.h.2.ln_1.weight.*missing"),
        (spoil_expanded, "transformer.wte.weight.*stored"),
    ],
)
def test_wrong_checkpoint_is_named(tmp_path, spoil, words):
    saved = checkpoint(GPT(CONFIG))
    spoil(saved)
    torch.save(saved, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match=f"^path=.*ckpt.pt': .*{words}"):
        load_nanogpt(tmp_path / "ckpt.pt")


class Payload:
    def __reduce__(self):
        return (print, ("code in a checkpoint has run",))


def test_code_in_a_checkpoint_does_not_run(tmp_path, capsys):
    torch.save(checkpoint(GPT(CONFIG)) | {"config": Payload()}, tmp_path / "ckpt.pt")
    with pytest.raises(ValueError, match="path=") as refusal:
        load_nanogpt(tmp_path / "ckpt.pt")
    assert "has run" not in capsys.readouterr().out
    assert "weights_only" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_file_is_one_clear_error(tmp_path, zipped):
    path, draw = tmp_path / "ckpt.pt", random.Random(0)
    torch.save(
        checkpoint(GPT(GPTConfig(3, 2, 1, 1, 2))), path, _use_new_zipfile_serialization=zipped
    )
    whole = path.read_bytes()
    for _ in range(200):
        damaged = bytearray(whole[: draw.choice([len(whole), draw.randrange(len(whole))])])
        for place in (draw.randrange(len(damaged) or 1) for _ in range(draw.randrange(4))):
            damaged[place : place + 1] = [draw.randrange(256)]
        path.write_bytes(damaged)
        try:
            load_nanogpt(path)  # damage may hit what nobody reads
        except ValueError as error:
            assert str(error).startswith(f"path={str(path)!r}: ") and "weights_only" not in str(
                error
            )


@pytest.mark.parametrize("path", [None, 3, True, b"ckpt.pt", "a\0b", "."])
def test_path_that_is_no_file_is_named(path):
    with pytest.raises(ValueError, match="^path="):
        load_nanogpt(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a checkpoint",
        b"PK\x03\x04 cut short",
        b"(",
        b"\x80\x02}q\x00.",
        "[\xff".encode("latin1"),
    ],
)
def test_file_that_is_no_checkpoint(tmp_path, content):
    (tmp_path / "ckpt.pt").write_bytes(content)
    with pytest.raises(ValueError, match="path=.*ckpt.pt"):
        load_nanogpt(tmp_path / "ckpt.pt")
    with pytest.raises(FileNotFoundError):
        load_nanogpt(tmp_path / "absent.pt")
