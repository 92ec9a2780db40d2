"""Arithmetic of what a machine allows: the roofline of each product, and Amdahl's law for the whole model.

A product of `[M, K]` with `[K, N]` does `2 M N K` operations and moves `M K`, `K N` and `M N` elements. It can't take
less time than `operations / peak` nor than `bytes / bandwidth`; which of the two binds is told by its intensity
(operations/byte) against the machine's balance point, `peak / bandwidth`. With the parts of a model taking the shares
`f_i` of its time and becoming `s_i` times faster, the model becomes `1 / sum(f_i / s_i)` times faster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose


@dataclass(frozen=True)
class Machine:
    """What was measured of a machine with a number of threads.

    Attributes:
        peak (`Mapping[str, float]`): operations/s of large products, by kind: `"fp32"`, `"bf16"`, `"int8"`.
        memory_bandwidth, llc_bandwidth (`float`): bytes/s read from memory and from the last-level cache.
        llc_bytes (`int`): size of that cache.
    """

    peak: Mapping[str, float]
    memory_bandwidth: float
    llc_bandwidth: float
    llc_bytes: int

    def bandwidth(self, weight_bytes: float) -> float:
        """Effective bandwidth, bytes/s, for a model that reads `weight_bytes` of weights in every call.

        That of the cache where all of them stay in it from call to call; else that of memory, since weights read in the
        same order every time have left the cache when they are needed again.
        """
        return self.llc_bandwidth if weight_bytes <= self.llc_bytes else self.memory_bandwidth

    def balance(self, kind: str, weight_bytes: float) -> float:
        """Operations/byte at which `kind` goes over from being bound by bandwidth to being bound by arithmetic."""
        return self.peak[kind] / self.bandwidth(weight_bytes)


@dataclass(frozen=True)
class Gemm:
    """`count` products `[m, k] x [k, n]` of a call."""

    m: int
    n: int
    k: int
    count: int = 1

    @property
    def operations(self) -> int:
        """Multiplications and additions of one product: `2 m n k`."""
        return 2 * self.m * self.n * self.k

    def bytes(self, kind: str) -> int:
        """Bytes that one product moves at least: inputs, weights and outputs once each."""
        inputs, weights, outputs = ELEMENT_BYTES[kind]
        return self.m * self.k * inputs + self.k * self.n * weights + self.m * self.n * outputs

    def intensity(self, kind: str) -> float:
        """Operations/byte."""
        return self.operations / self.bytes(kind)

    def seconds(self, kind: str, machine: Machine, weight_bytes: float) -> float:
        """Least time of one product on `machine`."""
        return max(self.operations / machine.peak[kind], self.bytes(kind) / machine.bandwidth(weight_bytes))


ELEMENT_BYTES = {"fp32": (4, 4, 4), "bf16": (2, 2, 2), "int8": (1, 1, 4)}
"""Bytes of an element of input, weight and output: int8 products leave float32 to the next operator."""


def weight_bytes(gemms: Iterable[Gemm], kind: str) -> int:
    """Bytes of all weights: `n k` elements for each product."""
    return sum(gemm.n * gemm.k * gemm.count for gemm in gemms) * ELEMENT_BYTES[kind][1]


def gemm_seconds(gemms: Sequence[Gemm], kind: str, machine: Machine) -> float:
    """Least time of all products of a call."""
    total = weight_bytes(gemms, kind)
    return sum(gemm.count * gemm.seconds(kind, machine, total) for gemm in gemms)


def gemm_speedup(gemms: Sequence[Gemm], kind: str, machine: Machine, baseline: str = "fp32") -> float:
    """How many times faster the products can become in `kind`, by the roofline of both."""
    return gemm_seconds(gemms, baseline, machine) / gemm_seconds(gemms, kind, machine)


def amdahl(parts: Iterable[tuple[float, float]]) -> float:
    """Speed-up of a whole whose parts take `share` of the time and become `speedup` times faster: `1 / sum(f / s)`.

    Args:
        parts (`Iterable[tuple[float, float]]`): `(share, speedup)`; the shares add up to 1.

    Raises:
        `ValueError`: the shares don't add up to 1, or a speed-up isn't positive.
    """
    parts = list(parts)
    total = sum(share for share, _ in parts)
    if not isclose(total, 1, abs_tol=1e-6):
        raise ValueError(f"The shares of the parts have to add up to 1, not {total:g}.")
    if min(speedup for _, speedup in parts) <= 0:
        raise ValueError(f"Speed-ups have to be positive, got {[speedup for _, speedup in parts]}.")
    return 1 / sum(share / speedup for share, speedup in parts)
