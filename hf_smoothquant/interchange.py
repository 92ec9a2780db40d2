"""Checkpoints that transformers loads without this package, by its torchao quantizer."""

import os

from torch import nn
from torchao.prototype.smoothquant import SmoothQuantConfig as TorchaoSmoothQuantConfig
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8Tensor
from transformers import PreTrainedModel, TorchAoConfig


def save_torchao(model: PreTrainedModel, save_directory: str | os.PathLike, **kwargs) -> None:
    """Saves a dynamic int8 model as a torchao checkpoint: `from_pretrained` loads it without this package.

    The tensors are those of `save_pretrained`, and so are the outputs, to the bit. config.json says `quant_method:
    "torchao"`; torchao has to be installed where it is loaded. What this package adds at run time (fused kernels of
    `compile`, checks of the files, inputs of zero tokens, float16, CPUs without VNNI) is missing there.

    Args:
        model (`PreTrainedModel`): quantized with `activation="dynamic"`.
        save_directory (`str` or `PathLike`): the folder.
        kwargs: those of `save_pretrained`.

    Raises:
        `ValueError`: the model isn't quantized, has static activation scales (transformers 5.24 has no name for them
            and would fail to load), or has a GPT-2 `Conv1D` in int8 (stored as a Linear).
    """
    linears = {
        name: module
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), Int8Tensor)
    }
    if not linears:
        raise ValueError(f"{type(model).__name__} has no int8 Linear: save_pretrained saves a float model.")
    static = [name for name, linear in linears.items() if linear.weight.act_quant_scale is not None]
    if static:
        raise ValueError(
            f"transformers can't load static activation scales without hf_smoothquant ({static[0]} has one). Quantize "
            'with activation="dynamic", or use save_pretrained and import hf_smoothquant where it is loaded.'
        )
    conv1d = [name for name, linear in linears.items() if hasattr(linear, "nf")]
    if conv1d:
        raise ValueError(
            f"{conv1d[0]!r} is a Conv1D, whose int8 weight is stored as a Linear's: transformers can't load it without "
            "hf_smoothquant. Use save_pretrained."
        )
    own = model.config.quantization_config
    model.config.quantization_config = torchao_config(linears, model)
    try:
        model.save_pretrained(save_directory, **kwargs)
    finally:
        model.config.quantization_config = own


def torchao_config(linears: dict[str, nn.Linear], model: PreTrainedModel) -> TorchAoConfig:
    """What stock transformers has to know to rebuild the int8 weights of `linears`."""
    in_float = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name not in linears]
    base = Int8DynamicActivationInt8WeightConfig(version=2)
    return TorchAoConfig(
        TorchaoSmoothQuantConfig(base_config=base, step="prepare_for_loading", alpha=None),
        modules_to_not_convert=in_float or None,
    )
