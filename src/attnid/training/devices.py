"""What a device can do."""

import torch

from ..checks import require

DEVICES = ("cpu", "cuda", "mps")  # types that training knows


def require_device(device, precision="float32"):
    """Raise ValueError unless this machine has the device, of one of the types DEVICES, and the device numbers of that format."""
    require(str(device).split(":")[0] in DEVICES, "device", device, f"must be one of {DEVICES}")
    try:
        torch.empty(0, device=device, dtype=getattr(torch, precision))
    except (
        RuntimeError,
        AssertionError,
        TypeError,
    ) as error:  # PyTorch built without it; MPS has no float64
        raise ValueError(
            f"device={device!r}: {str(error).splitlines()[0].split('. ')[0]}"
        ) from None


def choose_precision(device):
    """The format for a device's type: bfloat16 where a GPU has it natively, float16 (with a scaler) on an older one, float32 elsewhere."""
    if torch.device(device).type != "cuda":
        return "float32"
    # without the second word a T4 says yes, by slow emulation
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
