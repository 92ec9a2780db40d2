"""The machine that a package was compiled on, and whether this one can run it."""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from packaging.version import Version

from hf_smoothquant import cpu

# Those that a compiler told to use all of this CPU makes use of; sizes of caches and the like are left out.
INSTRUCTION_SETS = re.compile(r"avx|amx|fma|f16c|bmi|lzcnt|popcnt|sse4_|neon|sve|sme|bf16|fp16|i8mm|dot")
REBUILD = "Call hf_smoothquant.export again on this machine, or on one like it."


@dataclass(frozen=True)
class Machine:
    """What compiled code depends on.

    Attributes:
        torch (`str`): version without the local part, `"2.13.0"`: packed weights and runtime belong to one release.
        system (`str`): `"Linux"`.
        architecture (`str`): `"x86_64"`.
        capabilities (`tuple[str, ...]`): instruction sets of the CPU, by the names of `torch.cpu.get_capabilities`.
        int8_kernels (`bool`): whether int8 products run in oneDNN's kernels; else in float32 (`hf_smoothquant.cpu`).
        threads (`int`): `torch.get_num_threads()`; the generated loops have it built in.
    """

    torch: str
    system: str
    architecture: str
    capabilities: tuple[str, ...]
    int8_kernels: bool
    threads: int

    @classmethod
    def here(cls) -> "Machine":
        """This process on this machine."""
        found: Mapping = torch.cpu.get_capabilities()
        capabilities = (name for name, value in found.items() if value is True and INSTRUCTION_SETS.match(name))
        return cls(
            torch=Version(torch.__version__).public,
            system=platform.system(),
            architecture=platform.machine(),
            capabilities=tuple(sorted(capabilities)),
            int8_kernels=not cpu.SATURATES,
            threads=torch.get_num_threads(),
        )

    def check_runs_on(self, other: "Machine") -> None:
        """Whether code that was compiled here runs on `other`.

        Raises:
            `RuntimeError`: it wouldn't, or with wrong values; says what differs and what to do.
        """
        if self.torch != other.torch:
            raise RuntimeError(
                f"The package was compiled with torch {self.torch}, and this is torch {other.torch}. Install that "
                f"version (pip install torch=={self.torch}), or call hf_smoothquant.export again with this one."
            )
        if (self.system, self.architecture) != (other.system, other.architecture):
            raise RuntimeError(
                f"The package was compiled for {self.system} on {self.architecture}, and this is {other.system} on "
                f"{other.architecture}. {REBUILD}"
            )
        lacking = [name for name in self.capabilities if name not in other.capabilities]
        if lacking:
            raise RuntimeError(f"This CPU lacks instructions that the package uses: {', '.join(lacking)}. {REBUILD}")
        if self.int8_kernels and not other.int8_kernels:
            raise RuntimeError(
                "The package's int8 kernels would saturate here and give wrong values: oneDNN finds no VNNI "
                f"instructions (or ONEDNN_MAX_CPU_ISA forbids them: unset it). {REBUILD}"
            )
