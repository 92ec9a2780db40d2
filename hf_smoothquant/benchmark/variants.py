"""What is compared: this package's modes, and other engines, each run by a worker script in a Python of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).with_name("workers")
KINDS = ("fp32", "bf16", "static", "dynamic")
OPTIONS = ("eager", "autocast", "autotune", "cpp")
TORCH = "torch==2.13.0"  # the exports are read with the same PyTorch and transformers everywhere
REQUIREMENTS = {
    "openvino": (TORCH, "transformers==5.24.0", "openvino==2026.4.1", "nncf==3.4.0"),
    "onnxruntime": (TORCH, "transformers==5.24.0", "onnxruntime==1.32.0", "onnx==1.23.2", "onnxscript==0.7.2"),
    "ctranslate2": (TORCH, "transformers==5.24.0", "ctranslate2==4.8.5"),
}
"""Packages of the venvs by name. torchao's own flows need none: they run on this package's torch and torchao."""


@dataclass(frozen=True)
class Variant:
    """One competitor.

    Attributes:
        name (`str`): as it was asked for, e.g. `"static+autocast"` or `"openvino-int8"`.
        worker (`str`): file name of the worker script.
        environment (`str`, *optional*): the venv it runs in, a key of `REQUIREMENTS`; the running Python by default.
        options (`dict`): for the worker.
    """

    name: str
    worker: str
    environment: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def parse_mode(text: str) -> Variant:
    """A mode of this package: `KIND` and options of it, `fp32+eager`, `static+autocast+autotune`.

    `eager` doesn't compile; `autocast` runs what lies between the Linears in bfloat16; `autotune` and `cpp` are
    Inductor's `max_autotune` and `cpp_wrapper`.

    Raises:
        `ValueError`: there is no such kind or option.
    """
    kind, *options = text.split("+")
    if kind not in KINDS or not set(options) <= set(OPTIONS):
        raise ValueError(f"There is no mode {text!r}: one of {', '.join(KINDS)}, then any of +{', +'.join(OPTIONS)}.")
    return Variant(text, "torch_worker.py", options={"kind": kind, **{name: name in options for name in OPTIONS}})


def _peers() -> dict[str, Variant]:
    inductor, plain = {"autotune": True, "cpp": True}, {"autotune": False, "cpp": True}
    peers = [
        Variant("torchao-static", "torchao_worker.py", options={"flow": "smoothquant-static", **inductor}),
        Variant("torchao-dynamic", "torchao_worker.py", options={"flow": "smoothquant-dynamic", **inductor}),
        # max_autotune's generated kernels aren't right everywhere (the table shows the error): the same without.
        Variant("torchao-static-plain", "torchao_worker.py", options={"flow": "smoothquant-static", **plain}),
        Variant("torchao-stock", "torchao_worker.py", options={"flow": "stock", **inductor}),
        *(
            Variant(f"openvino-{kind}", "openvino_worker.py", "openvino", {"precision": kind})
            for kind in ("fp32", "bf16", "int8")
        ),
        *(
            Variant(f"onnxruntime-{kind}", "onnxruntime_worker.py", "onnxruntime", {"precision": kind})
            for kind in ("fp32", "dynamic", "static")
        ),
        *(
            Variant(f"ctranslate2-{kind}", "ctranslate2_worker.py", "ctranslate2", {"precision": kind})
            for kind in ("fp32", "int8")
        ),
    ]
    return {peer.name: peer for peer in peers}


PEERS = _peers()
"""Other engines and flows by name."""


def parse_peers(names: Sequence[str]) -> list[Variant]:
    """Peers by name, by engine (`openvino`: all of its variants) or `all`.

    Raises:
        `ValueError`: there is no such peer.
    """
    found: dict[str, Variant] = {}
    for name in names:
        matching = {key: peer for key, peer in PEERS.items() if name in ("all", key) or key.startswith(f"{name}-")}
        if not matching:
            raise ValueError(f"There is no peer {name!r}. Peers: all, {', '.join(PEERS)}.")
        found |= matching
    return list(found.values())


def interpreter(environment: str | None, folder: Path) -> str:
    """The Python that runs a variant: this one, or that of a venv in `folder`, which is made if it isn't there.

    Args:
        environment (`str` or `None`): a key of `REQUIREMENTS`; `None` is the running Python.
        folder (`Path`): of the venvs.

    Raises:
        `RuntimeError`: pip couldn't install the packages; the message ends with what it said.
    """
    if environment is None:
        return sys.executable
    python, complete = folder / environment / "bin" / "python", folder / environment / "complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder / environment], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        torch, *others = REQUIREMENTS[environment]
        for packages in ([torch], others):  # torch by itself first, so that nothing else decides on its build
            result = subprocess.run([*pip, *packages], capture_output=True, text=True)
            if result.returncode:
                raise RuntimeError(f"pip install {' '.join(packages)} failed: {result.stderr.strip()[-500:]}")
        complete.touch()
    return str(python)


def default_environments() -> Path:
    """`~/.cache/hf_smoothquant/peers`, or under `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hf_smoothquant" / "peers"
