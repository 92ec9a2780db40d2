"""From a calibrated float model to an int8 one, in place, and back."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from hf_smoothquant.calibration.data import calibration_data
from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.calibration.runner import calibrate
from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.linear import Int8Linear, dequantize_weight, quantize_weight
from hf_smoothquant.selection import select_linears
from hf_smoothquant.smoothing.factors import activation_scale, smoothing_factors

logger = logging.get_logger(__name__)


def quantize_model(model: PreTrainedModel, config: SmoothQuantConfig) -> SmoothQuantConfig:
    """Calibrates `model` and converts its Linears to int8, in place. Nothing is converted when calibration fails.

    Returns:
        `SmoothQuantConfig`: the config of the quantized model, with a record of the calibration and without its data.

    Raises:
        `ValueError`: no Linear of the model can be converted, or calibration data is missing, empty or gives NaN.
        `TypeError`: calibration data of a kind that isn't accepted.
    """
    selection = select_linears(model, config)
    if not selection.convert:
        reasons = sorted(set(selection.kept.values())) or ["it has no nn.Linear"]
        if any(isinstance(module, Conv1D) for module in model.modules()):
            reasons.append("Conv1D, which stands in for Linear in GPT-2, is not supported yet")
        raise ValueError(
            f"SmoothQuant found no Linear to convert in {type(model).__name__}: {'; '.join(reasons)}. Load the model "
            "without quantization_config, or change modules_to_not_convert / min_features."
        )
    data = calibration_data(config, model)
    observer = calibrate(model, selection.convert, data)
    unreached = observer.unreached()
    if len(unreached) == len(selection.convert):
        raise ValueError(
            f"Calibration reached no Linear of {type(model).__name__}: the batches hold nothing but padding, or the "
            "model doesn't call these modules. Nothing was quantized; check SmoothQuantConfig(dataset=...)."
        )
    if unreached:
        logger.warning(f"Left in float, since calibration never reached them: {', '.join(unreached)}.")
    for group in observer.groups():
        convert_group([selection.convert[name] for name in group.names], group, config)
    return config.without_runtime_objects(data.describe())


@torch.no_grad()
def convert_group(linears: Iterable[nn.Linear], group: Group, config: SmoothQuantConfig) -> None:
    """Turns the Linears of one group into `Int8Linear`s with a common smoothing factor and activation scale.

    A weight shared by several Linears is quantized once and stays shared.
    """
    linears = list(linears)
    w_absmax = torch.stack([linear.weight.abs().amax(0).float() for linear in linears]).amax(0)
    factors = smoothing_factors(group.absmax, w_absmax, config.alpha)
    scale = activation_scale(group.absmax, factors) if config.activation == "static" else None
    by_weight: dict[nn.Parameter, list[nn.Linear]] = defaultdict(list)
    for linear in linears:
        by_weight[linear.weight].append(linear)
    for weight, owners in by_weight.items():
        quantized = nn.Parameter(quantize_weight(weight, factors, scale, group.ndim), requires_grad=False)
        for linear in owners:
            Int8Linear.adopt(linear).weight = quantized


def dequantize_model(model: nn.Module, dtype: torch.dtype | None = None) -> None:
    """Turns every `Int8Linear` back into a float `nn.Linear`, smoothing undone, in place."""
    by_weight: dict[nn.Parameter, list[Int8Linear]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, Int8Linear):
            by_weight[module.weight].append(module)
    for weight, owners in by_weight.items():
        floats = nn.Parameter(dequantize_weight(weight).to(dtype or weight.dtype))
        for module in owners:
            module.weight = floats
            module.__class__ = nn.Linear
