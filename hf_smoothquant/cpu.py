"""What this machine's int8 products are good for."""

import torch


def _saturates() -> bool:
    """Whether oneDNN's int8 product goes wrong here, tried out on the largest values.

    Before VNNI (AVX2, early AVX512) the instruction adds pairs of u8 x s8 products in 16 bits, which 2 * 255 * 127
    overflows: sums are silently cut off. Tried out and not looked up, since `ONEDNN_MAX_CPU_ISA` decides, too.
    """
    try:
        size = 64
        largest = torch.full((size, size), 127, dtype=torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(largest, [size, size])
        scales, zero_points = torch.ones(size), torch.zeros(size, dtype=torch.int32)
        product = torch.ops.onednn.qlinear_pointwise(
            largest, 1.0, 0, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
        )
    except (AttributeError, RuntimeError, NotImplementedError):  # a build of torch without oneDNN
        return True
    return not torch.equal(product, torch.full((size, size), 127.0 * 127 * size))


# At import, since Dynamo would trace a function that it is asked of later. It takes about a millisecond.
SATURATES: bool = _saturates()
