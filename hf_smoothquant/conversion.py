"""From a calibrated float model to an int8 one, in place, and back."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from hf_smoothquant.calibration.data import calibration_data
from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.calibration.runner import calibrate
from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.linear import Int8Linear, dequantize_weight
from hf_smoothquant.report import GroupReport, QuantizationReport
from hf_smoothquant.selection import matches, select_linears
from hf_smoothquant.smoothing.alpha import column_absmax, group_alpha, group_sqnr_db, quantize_group
from hf_smoothquant.smoothing.factors import smoothing_factors
from hf_smoothquant.smoothing.folding import fold

logger = logging.get_logger(__name__)


@torch.no_grad()  # a graph over the weights would keep copies of them all
def quantize_model(model: PreTrainedModel, config: SmoothQuantConfig) -> tuple[SmoothQuantConfig, QuantizationReport]:
    """Calibrates `model` and converts its Linears to int8, in place. Nothing is converted when calibration fails.

    Returns:
        The config of the quantized model, with a record of the calibration and without its data, and the report.

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
    _warn_of_useless_patterns(config.alpha, selection.convert)
    report = QuantizationReport(kept=selection.kept | dict.fromkeys(unreached, "never reached in calibration"))
    groups = observer.groups()
    linears = [{name: selection.convert[name] for name in group.names} for group in groups]
    alphas, factors = [], []
    for group, members in zip(logging.tqdm(groups, desc="Smoothing", unit="group", leave=False), linears, strict=True):
        weights = list(_by_weight(members.values()))
        alphas.append(group_alpha(weights, group, config))
        factors.append(smoothing_factors(group.absmax, column_absmax(weights), alphas[-1]))
    folded = fold(model, linears, factors, observer.first_batch) if config.fold else {}
    for index, group in enumerate(groups):
        members, norm = linears[index].values(), folded.get(index)
        report.groups.append(convert_group(members, group, alphas[index], factors[index], config, norm))
    return config.without_runtime_objects(data.describe()), report


def convert_group(
    linears: Iterable[nn.Linear],
    group: Group,
    alpha: float,
    factors: torch.Tensor,
    config: SmoothQuantConfig,
    folded_into: str | None = None,
) -> GroupReport:
    """Turns the Linears of one group into `Int8Linear`s with a common smoothing factor and activation scale.

    A weight shared by several Linears is quantized once and stays shared. With `folded_into` the input is divided by
    the factors already, and none are stored.
    """
    by_weight = _by_weight(linears)
    weights = list(by_weight)
    w_absmax = column_absmax(weights)
    quantized = quantize_group(weights, group.absmax, factors, config, group.ndim)
    report = GroupReport(
        names=group.names,
        alpha=alpha,
        x_absmax=group.absmax.max().item(),
        w_absmax=w_absmax.max().item(),
        smoothed_x_absmax=(group.absmax / factors).max().item(),
        smoothed_w_absmax=(w_absmax * factors).max().item(),
        act_scale=None if quantized[0].act_quant_scale is None else quantized[0].act_quant_scale.item(),
        sqnr_db=group_sqnr_db(weights, quantized, group.rows),
        folded_into=folded_into,
    )
    for int8, owners in zip(quantized, by_weight.values(), strict=True):
        if folded_into is not None:
            int8.act_pre_scale = None
        parameter = nn.Parameter(int8, requires_grad=False)
        for linear in owners:
            Int8Linear.adopt(linear).weight = parameter
    return report


def _by_weight(linears: Iterable[nn.Linear]) -> dict[nn.Parameter, list[nn.Linear]]:
    """Linears by the weight they own or share. To be dropped soon: float weights are freed as they are converted."""
    by_weight: dict[nn.Parameter, list[nn.Linear]] = defaultdict(list)
    for linear in linears:
        by_weight[linear.weight].append(linear)
    return by_weight


def _warn_of_useless_patterns(alpha: object, names: Iterable[str]) -> None:
    for pattern in alpha if isinstance(alpha, Mapping) else ():
        if not any(matches(pattern, name) for name in names):
            logger.warning(f"alpha: {pattern!r} matches no Linear that is converted.")


def dequantize_model(model: nn.Module) -> None:
    """Turns every `Int8Linear` back into a float `nn.Linear`, smoothing undone, in place."""
    int8_linears = (module for module in model.modules() if isinstance(module, Int8Linear))
    for weight, owners in _by_weight(int8_linears).items():
        floats = nn.Parameter(dequantize_weight(weight))
        for module in owners:
            module.weight = floats
            module.__class__ = nn.Linear
