"""SmoothQuant INT8 for Hugging Face models: importing this package registers it with transformers."""

from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.quantizer import register
from hf_smoothquant.report import quantization_report

__version__ = "0.1.0"
__all__ = ["SmoothQuantConfig", "compile", "quantization_report"]

register()


def __getattr__(name: str):
    # Inductor takes seconds to import, and only `compile` needs it.
    if name == "compile":
        from hf_smoothquant.inductor.compile import compile

        return compile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
