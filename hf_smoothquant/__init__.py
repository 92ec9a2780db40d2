"""SmoothQuant INT8 for Hugging Face models: importing this package registers it with transformers."""

import importlib

from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.quantizer import register
from hf_smoothquant.report import quantization_report

__version__ = "0.1.0"
__all__ = ["SmoothQuantConfig", "compile", "export", "load", "quantization_report", "save_torchao"]

# Inductor and torchao's prototypes take seconds to import, and only these need them.
LAZY = {
    "compile": "hf_smoothquant.inductor.compile",
    "export": "hf_smoothquant.aot.export",
    "load": "hf_smoothquant.aot.package",
    "save_torchao": "hf_smoothquant.interchange",
}

register()


def __getattr__(name: str):
    if name in LAZY:
        return getattr(importlib.import_module(LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
