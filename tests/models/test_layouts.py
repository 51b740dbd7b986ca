"""Where the weights lie: what is read from a real module makes that module's outputs."""

import dataclasses

import pytest
import real_layers as real
import torch

from attnid import Attention
from attnid.layer.attention import forward, shift_is_seen
from attnid.layer.canonical import FORMS, reduce_layer
from attnid.models.architectures import read_architecture
from attnid.models.layouts import LAYOUTS, check_tensors, read_layer, write_layer

CASES = {name: case for name, case in real.CASES.items() if case[0]["model_type"] in LAYOUTS}
CASES["gemma2"] = (CASES["gemma2"][0] | {"attn_logit_softcapping": 2.0}, "sliding")  # our soft cap
CASES["qwen2, one key head"] = (CASES["qwen2"][0] | {"num_key_value_heads": 1}, "self")
CASES["gemma3, biases"] = (CASES["gemma3"][0] | {"attention_bias": True}, "sliding")
CASES["bert, decoder"] = (CASES["bert"][0] | {"is_decoder": True}, "self")


class Module:
    """A real attention layer with random weights: its description, its layout, and its tensors by their names in a file."""

    def __init__(self, name, monkeypatch):
        config, kind = CASES[name]
        self.layer = real.build(config, kind)
        real.in_double(monkeypatch, self.layer)
        real.fill(self.layer, seed=0)
        self.attention = dict(read_architecture(config).layers)[kind]
        self.layout = LAYOUTS[config["model_type"]]
        self.tensors = self._named(config["model_type"])
        self._turn_exactly()

    def _turn_exactly(self):
        # transformers rounds the angles to float32
        for cell in self.layer.call.__closure__ or ():
            rotary = getattr(cell.cell_contents, "rotary_emb", cell.cell_contents)
            if self.attention.rotary and hasattr(rotary, "inv_freq"):
                expected = torch.tensor(self.attention.rotary, dtype=torch.float64)
                torch.testing.assert_close(rotary.inv_freq, expected, rtol=1e-6, atol=0)
                rotary.inv_freq = expected

    def _named(self, family):
        own = {name.removeprefix("parts."): p.detach() for name, p in self.layer.named_parameters()}
        first = {"bert": "self.", "vit": "attention."}.get(family, "")
        return {
            ("output.dense." + name[2:] if name.startswith("1.") else first + name[2:]): p
            for name, p in own.items()
        }

    def outputs(self, seed=3):
        x = torch.randn(
            2,
            8,
            self.attention.E,
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
        )
        return x, self.layer(x).detach()


@pytest.fixture(params=CASES)
def module(request, monkeypatch):
    return Module(request.param, monkeypatch)


def gains(module):
    """Gains of queries and keys as the module multiplies by them, in our order of coordinates."""
    a = module.attention
    found = {}
    for letter, heads in (("q", a.H), ("k", a.G)):
        if a.qk_norm:
            gain = module.tensors[f"{letter}_norm.weight"] + (
                "gemma3" in type(module.layer.parts[0]).__module__
            )
            planes = len(a.rotary)
            order = [c for i in range(planes) for c in (i, planes + i)] + list(
                range(2 * planes, a.D)
            )
            found["gain_" + letter.upper()] = (
                gain.unflatten(0, (heads, a.D)) if a.qk_norm == "layer_gain" else gain
            )[..., order]
    return found


def test_a_family_read_makes_the_outputs_of_its_real_module(module):
    a = module.attention
    if a.score == "alibi":
        pytest.skip("Falcon scales its slopes and rounds them to bfloat16")
    if a.E == 12 and module.layout is LAYOUTS["bert"]:
        a = dataclasses.replace(a, causal=False)  # the mask is the model's, not the module's
    check_tensors(module.layout, module.attention, module.tensors)
    parameters = read_layer(module.layout, a, module.tensors) | gains(module)
    assert {name: tuple(t.shape) for name, t in parameters.items()} == a.shapes
    x, expected = module.outputs()
    bound = 1e-6 if a.rotary else 1e-10  # transformers keeps the angles in float32
    torch.testing.assert_close(forward(a, parameters, x), expected, rtol=bound, atol=bound)


def test_read_and_written_back_is_the_same_to_the_bit(module):
    before = {name: tensor.clone() for name, tensor in module.tensors.items()}
    parameters = read_layer(module.layout, module.attention, module.tensors)
    for tensor in module.tensors.values():  # what write_layer does not fill stays NaN
        tensor.fill_(torch.nan)
    write_layer(module.layout, module.attention, module.tensors, parameters)
    for name, tensor in module.tensors.items():
        read = not (name.endswith("_norm.weight") or name in module.layout.rest)
        assert torch.equal(tensor, before[name]) if read else tensor.isnan().all()


def test_what_is_read_is_a_copy(module):
    before = {name: tensor.clone() for name, tensor in module.tensors.items()}
    for tensor in read_layer(module.layout, module.attention, module.tensors).values():
        tensor.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.tensors.items())


@pytest.mark.parametrize("form", FORMS)
def test_a_reduced_layer_has_the_outputs_of_the_real_module(module, form):
    old = read_layer(module.layout, module.attention, module.tensors)
    fixed = {
        name: torch.ones(shape, dtype=torch.float64)
        for name, shape in module.attention.shapes.items()
        if name.startswith("gain")
    }
    x, expected = module.outputs()
    write_layer(
        module.layout,
        module.attention,
        module.tensors,
        reduce_layer(module.attention, old | fixed, form).parameters,
    )
    torch.testing.assert_close(module.outputs()[1], expected, rtol=1e-8, atol=1e-8)
    new = read_layer(module.layout, module.attention, module.tensors)
    assert (new["W_V"] - old["W_V"]).abs().max() > 0.01
    assert module.attention.qk_norm or (new["W_K"] - old["W_K"]).abs().max() > 0.01
    if "k" in module.attention.bias and not (
        module.attention.qk_norm or module.attention.rotary or shift_is_seen(module.attention)
    ):
        assert not new["b_K"].any() and old["b_K"].any()


def test_every_layout_is_tried():
    assert {config["model_type"] for config, _ in CASES.values()} | {"nanogpt"} == set(LAYOUTS)


@pytest.mark.parametrize("family", LAYOUTS)
def test_shapes_hold_every_parameter_once(family):
    options = {
        "qwen3": {"qk_norm": "head_gain"},
        "olmo2": {"qk_norm": "layer_gain"},
        "gpt_oss": {"score": "sink"},
    }.get(family, {})
    attention = Attention(12, 4, bias="qkvo", **options)
    sizes = LAYOUTS[family].shapes(attention).values()
    assert (
        sum(size[0] * (size[1] if len(size) > 1 else 1) for size in sizes) == attention.parameters
    )


LLAMA, SMALL = LAYOUTS["llama"], Attention(4, 2, 1, bias="qkvo", rotary=(1.0,))


def tensors(**changed):
    return {name: torch.ones(shape) for name, shape in LLAMA.shapes(SMALL).items()} | {
        name.replace("__", "."): t for name, t in changed.items()
    }


def test_masks_and_angles_of_old_files_are_no_weights():
    check_tensors(
        LLAMA,
        SMALL,
        tensors(
            rotary_emb__inv_freq=torch.ones(1),
            masked_bias=torch.ones(()),
            bias=torch.ones(1, 1, 9, 9),
        ),
    )


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"q_proj__weight": torch.ones(2, 4)}, r"q_proj.weight=\(2, 4\): shape must be \(4, 4\)"),
        (
            {"k_proj__weight": torch.ones(2, 4, dtype=torch.int8)},
            "k_proj.weight=torch.int8: .*quantised",
        ),
        (
            {"o_proj__weight": torch.ones(4, 4).to(torch.float8_e4m3fn)},
            "o_proj.weight=torch.float8_e4m3fn: .*quantised",
        ),
        (
            {"v_proj__lora_A__weight": torch.ones(1, 4)},
            "tensors='v_proj.lora_A.weight': is in the checkpoint but not",
        ),
        (
            {"q_norm__weight": torch.ones(2)},
            "tensors='q_norm.weight': is in the checkpoint but not",
        ),
        (
            {"q_proj__qweight": torch.ones(2)},
            "tensors='q_proj.qweight': is in the checkpoint but not",
        ),
    ],
)
def test_a_wrong_tensor_is_named(changed, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        check_tensors(LLAMA, SMALL, tensors(**changed))


@pytest.mark.parametrize("name", LLAMA.shapes(SMALL))
def test_a_missing_tensor_is_named(name):
    some = tensors()
    del some[name]
    with pytest.raises(ValueError, match=f"^tensors='{name}': is missing"):
        check_tensors(LLAMA, SMALL, some)


def test_a_bias_that_the_configuration_denies_is_named():
    with pytest.raises(
        ValueError, match="^tensors='(q|k|v|o)_proj.bias': is in the checkpoint but not"
    ):
        check_tensors(LLAMA, dataclasses.replace(SMALL, bias=""), tensors())


def test_the_prefix_is_the_only_one_that_fits():
    first = "layers.0.self_attn.q_proj.weight"
    assert (
        LLAMA.prefix_in({"model." + first, "lm_head.weight"}) == "model."
        and LLAMA.prefix_in({first}) == ""
    )
    with pytest.raises(ValueError, match=f"^tensors='{first}': is in the checkpoint after none"):
        LLAMA.prefix_in({"base_model.model.model." + first})
    with pytest.raises(ValueError, match=f"^tensors='{first}': is in the checkpoint after each"):
        LLAMA.prefix_in({"model." + first, first})
