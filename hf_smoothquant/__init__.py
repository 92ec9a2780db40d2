"""SmoothQuant INT8 for Hugging Face models: importing this package registers it with transformers."""

from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.quantizer import register
from hf_smoothquant.report import quantization_report

__version__ = "0.1.0"
__all__ = ["SmoothQuantConfig", "compile", "quantization_report", "save_torchao"]

register()


def __getattr__(name: str):
    # Inductor takes seconds to import, and only `compile` needs it; torchao's prototypes only `save_torchao`.
    if name == "compile":
        from hf_smoothquant.inductor.compile import compile

        return compile
    if name == "save_torchao":
        from hf_smoothquant.interchange import save_torchao

        return save_torchao
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
