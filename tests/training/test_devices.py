"""The format that suits a device, and devices that are not there. The GPUs here are imitated."""

import pytest
import torch

from attnid.training.devices import choose_precision, require_device


def imitate(monkeypatch, native):
    """A GPU whose PyTorch says yes to bfloat16 as long as emulation counts, as it does on a T4."""
    monkeypatch.setattr(
        torch.cuda,
        "is_bf16_supported",
        lambda including_emulation=True: native or including_emulation,
    )


@pytest.mark.parametrize(
    "native, format", [(False, "float16"), (True, "bfloat16")], ids=["T4", "A100"]
)
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_format_is_what_the_gpu_has_natively(monkeypatch, native, format, device):
    imitate(monkeypatch, native)
    assert torch.cuda.is_bf16_supported() and choose_precision(device) == format


@pytest.mark.parametrize("device", ["cpu", "mps", torch.device("cpu")])
def test_format_is_float32_elsewhere(monkeypatch, device):
    imitate(monkeypatch, True)
    assert choose_precision(device) == "float32"


@pytest.mark.parametrize("device", ["gpu", "", "cpu:x", "cuda:99", "meta", "hpu"])
def test_device_that_is_not_there_is_named(device):
    with pytest.raises(ValueError, match=f"^device='{device}': [^\n]+$"):
        require_device(device)
    require_device("cpu", "float64")
