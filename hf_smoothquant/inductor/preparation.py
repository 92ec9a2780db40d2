"""What compiling for now and exporting for later have in common: checks of the model and Inductor's options."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor_config
from torchao.quantization import Int8Tensor
from transformers.utils import logging

from hf_smoothquant import cpu
from hf_smoothquant.inductor.fusions import register_fusions
from hf_smoothquant.versions import check_versions

logger = logging.get_logger(__name__)

NO_VNNI = (
    "This CPU has no VNNI instructions, and oneDNN's int8 products saturate without them. The int8 numbers are "
    "multiplied in float32 instead: the values are right, at the time and memory of a float model."
)


def prepare(model: nn.Module, autocast: torch.dtype | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Checks the arguments of `compile` and `export`, and makes the int8 fusions known to Inductor.

    Returns:
        `dict[str, Any]`: the options for Inductor's configuration while it compiles, `freezing` among them.

    Raises:
        `ValueError`: the model has no int8 Linear, or is in training mode, or an option doesn't exist.
        `ImportError`: a library is outside the supported range.
    """
    check_versions()
    if not any(isinstance(parameter, Int8Tensor) for parameter in model.parameters()):
        raise ValueError(
            f"{type(model).__name__} has no int8 Linear. Quantize it first: from_pretrained(..., quantization_config="
            "SmoothQuantConfig()). For a float model use torch.compile."
        )
    if model.training:
        raise ValueError("The compiled model is for inference: call model.eval() first.")
    if autocast not in (None, torch.bfloat16, torch.float16):
        raise ValueError(f"autocast must be None, torch.bfloat16 or torch.float16, got {autocast!r}.")
    options = {"freezing": True, **(options or {})}
    try:
        with inductor_config.patch(options):
            pass
    except (AttributeError, KeyError) as error:
        raise ValueError(
            f"Inductor doesn't have one of the options: {error}. See torch._inductor.list_options()."
        ) from error
    if cpu.SATURATES:
        logger.warning_once(NO_VNNI)
    else:
        register_fusions()
    return options
