"""What the figures depend on besides the code: CPU, versions, threads, load."""

import os
from pathlib import Path
from typing import Any

from hf_smoothquant.evaluation.table import cpuinfo
from hf_smoothquant.evaluation.table import environment as software

# The flags that decide which int8 and bf16 kernels run.
FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")


def describe(threads: int, cores: list[int], preload: list[str]) -> dict[str, Any]:
    """The environment of a run, JSON-like.

    Args:
        threads (`int`): of each worker.
        cores (`list[int]`): to which the workers are pinned.
        preload (`list[str]`): libraries loaded first.
    """
    present = set(cpuinfo("flags").split())
    return {
        **software(),
        "threads": threads,
        "cores": cores,
        "cores_of_the_machine": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in present],
        "caches": caches(),
        "preload": preload,
        "load_at_start": [round(value, 2) for value in os.getloadavg()],
        "variables": {key: value for key, value in os.environ.items() if key.startswith(("OMP_", "KMP_", "ONEDNN_"))},
    }


def caches() -> dict[str, int]:
    """Bytes of the first core's data caches: `{"L1": ..., "L2": ..., "L3": ...}`; empty where the system hides them."""
    sizes = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (folder / "type").read_text().strip() != "Instruction":
            kilobytes = int((folder / "size").read_text().strip().removesuffix("K"))
            sizes[f"L{(folder / 'level').read_text().strip()}"] = kilobytes * 1024
    return sizes
