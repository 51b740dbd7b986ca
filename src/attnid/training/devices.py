"""What a device can do."""

import torch

from ..checks import require

DEVICES = ("cpu", "cuda", "mps")  # types that training knows


def require_device(device, precision="float32"):
    """Raise ValueError unless this machine has the device, of one of the types DEVICES, and the
    device numbers of that format.
    """
    require(str(device).split(":")[0] in DEVICES, "device", device, f"must be one of {DEVICES}")
    try:
        torch.empty(0, device=device, dtype=getattr(torch, precision))
    except (RuntimeError, AssertionError, TypeError) as error:
        # PyTorch was built without it; MPS has no float64
        why = str(error).splitlines()[0].split(". ")[0]
        raise ValueError(f"device={device!r}: {why}") from None


def choose_precision(device):
    """The format for a device's type: bfloat16 where a GPU has it natively, float16 (with a scaler)
    on an older one, float32 elsewhere.
    """
    if torch.device(device).type != "cuda":
        return "float32"
    # without the second word a T4 says yes, by slow emulation
    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"


def possible_choices(device_name):
    """What choose_precision may have said on the device that a record names."""
    plain = device_name.split(":")[0] in ("cpu", "mps")
    return ("float32",) if plain else ("bfloat16", "float16")
