"""Measures the machine: peaks of products in fp32, bf16 and int8, bandwidth of memory and of the last-level cache."""

import time
from collections.abc import Callable

import torch

from hf_smoothquant.benchmark.environment import caches
from hf_smoothquant.benchmark.roofline import Machine

# Products large enough for arithmetic to bind: the shapes of BERT's feed-forward layers at many tokens.
SHAPES = ((512, 3072, 768), (512, 4096, 1024), (1024, 1024, 1024))
MEMORY_BYTES = 256 * 2**20
DEFAULT_LLC = 32 * 2**20


def measure_machine(repeats: int = 10, shapes: tuple[tuple[int, int, int], ...] = SHAPES) -> Machine:
    """The best of `repeats` runs of everything, with the threads that PyTorch is set to.

    The best, unlike anywhere else in the benchmark: it is about what the machine can do.

    Args:
        repeats (`int`, *optional*, defaults to 10): runs of each measurement.
        shapes (*optional*): `(m, n, k)` of the products; the fastest counts.
    """
    sizes = caches()
    llc = sizes[max(sizes)] if sizes else DEFAULT_LLC
    inner = sizes.get("L2", 0)
    peaks = {
        kind: max(2 * m * n * k / _best(make(m, n, k), repeats) for m, n, k in shapes)
        for kind, make in {"fp32": _float(torch.float32), "bf16": _float(torch.bfloat16), "int8": _int8}.items()
    }
    return Machine(
        peak=peaks,
        memory_bandwidth=read_bandwidth(max(MEMORY_BYTES, 4 * llc), repeats),
        llc_bandwidth=read_bandwidth(max(llc // 4, 2 * inner), repeats),
        llc_bytes=llc,
    )


@torch.no_grad()
def read_bandwidth(num_bytes: int, repeats: int) -> float:
    """Bytes/s of reading `num_bytes` again and again, as a dot product of two halves does."""
    halves = torch.ones(2, max(1, num_bytes // 8))
    return halves.nbytes / _best(lambda: torch.dot(halves[0], halves[1]), repeats)


def _float(dtype: torch.dtype) -> Callable[[int, int, int], Callable[[], object]]:
    def make(m: int, n: int, k: int) -> Callable[[], object]:
        # Packed weights, as frozen compiled models have them.
        x = torch.randn(m, k, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.randn(n, k, dtype=dtype), m)
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

    return make


def _int8(m: int, n: int, k: int) -> Callable[[], object]:
    # Unsigned inputs: CPUs with VNNI and no AMX have no kernel for signed ones (oneDNN's reference is 1000x slower).
    x, w = torch.randint(0, 256, (m, k), dtype=torch.uint8), torch.randint(-127, 128, (n, k), dtype=torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(w, [m, k])
    scales, zero_points = torch.ones(n), torch.zeros(n, dtype=torch.int32)

    def run() -> object:
        return torch.ops.onednn.qlinear_pointwise(
            x, 1.0, 0, packed, scales, zero_points, None, 1.0, 0, torch.float32, "none", [], ""
        )

    return run


def _best(run: Callable[[], object], repeats: int) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
