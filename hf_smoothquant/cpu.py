"""What this machine's int8 products are good for."""

import torch

# Given everywhere: this module may be imported inside `from_pretrained`, where the defaults are others.
FLOATS = {"dtype": torch.float32, "device": "cpu"}


def _saturates() -> bool:
    """Whether oneDNN's int8 product goes wrong here, tried out on the largest values.

    Before VNNI (AVX2, early AVX512) the instruction adds pairs of u8 x s8 products in 16 bits, which 2 * 255 * 127
    overflows: sums are silently cut off. Tried out and not looked up, since `ONEDNN_MAX_CPU_ISA` decides, too.
    """
    size = 64
    exact = torch.full((size, size), 127.0 * 127 * size, **FLOATS)
    try:
        if not torch.equal(_largest_product(size, torch.int8), exact):
            return True
        # Where the CPU has VNNI, torchao shifts activations to u8, and that kernel may saturate where s8 doesn't:
        # when oneDNN is held down to AVX512_CORE.
        shifts = torch.cpu.get_capabilities().get("avx512_vnni", False)
        return shifts and not torch.equal(_largest_product(size, torch.uint8), exact)
    except (AttributeError, RuntimeError, NotImplementedError):  # a build of torch without oneDNN
        return True


def _largest_product(size: int, dtype: torch.dtype) -> torch.Tensor:
    """`[size, size]`: the product of activations and weights that all stand for 127."""
    largest = torch.full((size, size), 127, dtype=torch.int8, device="cpu")
    shift = 128 if dtype == torch.uint8 else 0
    x = (largest.int() + shift).to(dtype)
    packed = torch.ops.onednn.qlinear_prepack(largest, [size, size])
    scales, zero_points = torch.ones(size, **FLOATS), torch.zeros(size, dtype=torch.int32, device="cpu")
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, shift, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
    )


# At import, since Dynamo would trace a function that it is asked of later. It takes about a millisecond.
SATURATES: bool = _saturates()
