"""From a calibrated float model to an int8 one, in place, and back."""

import copy
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torchao.quantization import Int8Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from hf_smoothquant.calibration.data import calibration_data
from hf_smoothquant.calibration.holdout import HoldOut
from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.calibration.runner import calibrate
from hf_smoothquant.calibration.weight_use import find_weight_use
from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.conv1d import conv1d_as_linear, to_conv1d
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.progress import progress
from hf_smoothquant.report import ChannelMaxima, GroupReport, QuantizationReport
from hf_smoothquant.selection import Selection, matches, select_linears
from hf_smoothquant.smoothing.alpha import column_absmax, group_alpha, group_sqnr_db, quantize_group, sqnr_db
from hf_smoothquant.smoothing.factors import smoothing_factors
from hf_smoothquant.smoothing.fallback import FLOAT, FallbackPlan, plan_fallback
from hf_smoothquant.smoothing.folding import divide_outputs, find_folds
from hf_smoothquant.smoothing.sensitivity import Sensitivity

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
        raise ValueError(
            f"SmoothQuant found no Linear to convert in {type(model).__name__}: {'; '.join(reasons)}. Load the model "
            "without quantization_config, or change modules_to_not_convert / min_features."
        )
    with conv1d_as_linear(selection.convert.values()):
        if config.activation == "none":
            return config.without_runtime_objects(None), _convert_weights(selection, config)
        return _calibrate_and_convert(model, config, selection)


def _convert_weights(selection: Selection, config: SmoothQuantConfig) -> QuantizationReport:
    """Weight-only int8: a group for each weight, without smoothing, which only inputs in int8 need."""
    report = QuantizationReport(kept=selection.kept)
    names = {linear: name for name, linear in selection.convert.items()}
    for weight, owners in progress(list(_by_weight(names).items()), "Quantizing", "weight"):
        int8 = quantize_weight(weight, config=config)
        absmax = weight.abs().max().item()
        report.groups.append(
            GroupReport(
                names=[names[linear] for linear in owners],
                alpha=None,
                x_absmax=None,
                w_absmax=absmax,
                smoothed_x_absmax=None,
                smoothed_w_absmax=absmax,
                act_scale=None,
                sqnr_db=sqnr_db(weight.float(), int8.dequantize(torch.float32)),
                activation="none",
            )
        )
        _adopt(owners, int8)
    return report


def _calibrate_and_convert(
    model: PreTrainedModel, config: SmoothQuantConfig, selection: Selection
) -> tuple[SmoothQuantConfig, QuantizationReport]:
    data = calibration_data(config, model)
    hold_out = HoldOut() if config.fallback else None
    observer = calibrate(model, selection.convert, data, hold_out)
    use = find_weight_use(model, selection.convert, observer.first_batch)
    for name in use.read:
        observer.statistics.pop(name, None)
    unreached = [name for name in observer.unreached() if name not in use.read]
    if not observer.statistics and not use.read:
        raise ValueError(
            f"Calibration reached no Linear of {type(model).__name__}: the batches hold nothing but padding, or the "
            "model doesn't call these modules. Nothing was quantized; check SmoothQuantConfig(dataset=...)."
        )
    if unreached:
        logger.warning(f"Left in float, since calibration never reached them: {', '.join(unreached)}.")
    if use.read:
        logger.warning(
            f"Left in float, since other code than the Linear itself uses the weight: {', '.join(use.read)}."
        )
    _warn_of_useless_patterns(config.alpha, selection.convert)
    kept = selection.kept | dict.fromkeys(unreached, "never reached in calibration")
    kept |= dict.fromkeys(use.read, "weight used by other code") | dict.fromkeys(
        use.products, "weights not in a Linear"
    )
    report = QuantizationReport(kept=kept)
    groups = [
        _plan_group(group, selection.convert, config) for group in progress(observer.groups(), "Smoothing", "group")
    ]
    fallback = _fall_back(model, groups, hold_out, config) if hold_out is not None else None
    if fallback is not None:
        report.output_sqnr_db = fallback.output_sqnr_db
        in_float = [name for group in groups if group.config.activation == FLOAT for name in group.linears]
        report.kept |= dict.fromkeys(in_float, "fallback: disturbs the outputs most")
        groups = [group for group in groups if group.config.activation != FLOAT]
    folds = find_folds(model, [group.linears for group in groups], observer.first_batch) if config.fold else {}
    report.groups = [convert_group(group, folds.get(index)) for index, group in enumerate(groups)]
    for index, producer in folds.items():  # after the conversion: no int8 value of a Linear that takes them changes
        divide_outputs(model.get_submodule(producer), groups[index].factors)
    return config.without_runtime_objects(data.describe()), report


@dataclass
class PlannedGroup:
    """Linears with a common input, and how they are to be quantized.

    Attributes:
        linears (`dict[str, nn.Linear]`): the Linears by full name.
        statistics (`Group`): what calibration saw of their input.
        alpha (`float`): smoothing strength.
        factors (`torch.Tensor`): `s`, `[K]`, float32.
        config (`SmoothQuantConfig`): the model's, or a copy with another `activation` where the group fell back.
        output_sqnr_db (`float` or `None`): what the group alone would do to the model's outputs, where it was measured.
    """

    linears: dict[str, nn.Linear]
    statistics: Group
    alpha: float
    factors: torch.Tensor
    config: SmoothQuantConfig
    output_sqnr_db: float | None = None


def _plan_group(group: Group, linears: Mapping[str, nn.Linear], config: SmoothQuantConfig) -> PlannedGroup:
    members = {name: linears[name] for name in group.names}
    weights = list(_by_weight(members.values()))
    alpha = group_alpha(weights, group, config)
    factors = smoothing_factors(group.absmax, column_absmax(weights), alpha)
    return PlannedGroup(members, group, alpha, factors, config)


def _fall_back(
    model: PreTrainedModel, groups: Sequence[PlannedGroup], hold_out: HoldOut, config: SmoothQuantConfig
) -> FallbackPlan:
    """Gives the groups that don't fit into the budget `config.fallback` a config of their own."""
    configs = {config.activation: config}
    for activation in ("dynamic", FLOAT):
        if activation not in configs:
            configs[activation] = copy.copy(config)
            configs[activation].activation = activation
            configs[activation].activation_granularity = None

    def quantize(index: int, activation: str) -> dict[nn.Module, torch.Tensor]:
        group = groups[index]
        by_weight = _by_weight(group.linears.values())
        quantized = quantize_group(list(by_weight), group.statistics, group.factors, configs[activation])
        return {linear: int8 for int8, owners in zip(quantized, by_weight.values(), strict=True) for linear in owners}

    sizes = [len(group.linears) for group in groups]
    plan = plan_fallback(Sensitivity(model, hold_out.samples), quantize, sizes, config.activation, config.fallback)
    for index, group in enumerate(groups):
        group.config = configs[plan.activations[index]]
        group.output_sqnr_db = plan.group_sqnr_db[index] if plan.group_sqnr_db else None
    return plan


def convert_group(group: PlannedGroup, folded_into: str | None = None) -> GroupReport:
    """Turns the Linears of one group into `Int8Linear`s with a common smoothing factor and activation scale.

    A weight shared by several Linears is quantized once and stays shared. With `folded_into` the module of that name
    divides the input by the factors, and none are stored.
    """
    by_weight = _by_weight(group.linears.values())
    weights, factors = list(by_weight), group.factors
    x_absmax, w_absmax = group.statistics.absmax, column_absmax(weights)
    quantized = quantize_group(weights, group.statistics, factors, group.config)
    report = GroupReport(
        names=list(group.linears),
        alpha=group.alpha,
        x_absmax=x_absmax.max().item(),
        w_absmax=w_absmax.max().item(),
        smoothed_x_absmax=(x_absmax / factors).max().item(),
        smoothed_w_absmax=(w_absmax * factors).max().item(),
        act_scale=None if quantized[0].act_quant_scale is None else quantized[0].act_quant_scale.item(),
        sqnr_db=group_sqnr_db(weights, quantized, group.statistics.rows),
        folded_into=folded_into,
        activation=group.config.activation,
        output_sqnr_db=group.output_sqnr_db,
        channels=ChannelMaxima.of(x_absmax, w_absmax, factors),
    )
    for int8, owners in zip(quantized, by_weight.values(), strict=True):
        if folded_into is not None:
            int8.act_pre_scale = None
        _adopt(owners, int8)
    return report


def _adopt(owners: Iterable[nn.Linear], int8: Int8Tensor) -> None:
    """Gives the Linears that share a weight its int8 form, shared still."""
    parameter = nn.Parameter(int8, requires_grad=False)
    for linear in owners:
        Int8Linear.adopt(linear).weight = parameter


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
    """Turns every `Int8Linear` back into the float `nn.Linear` or `Conv1D` it was, smoothing undone, in place."""
    int8_linears = [module for module in model.modules() if isinstance(module, Int8Linear)]
    for weight, owners in _by_weight(int8_linears).items():
        floats = nn.Parameter(weight.dequantize())
        for module in owners:
            module.weight = floats
            module.__class__ = nn.Linear
    to_conv1d(int8_linears)
