"""Smoothing strength per group: fixed, by pattern, or searched on real rows."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torchao.quantization import Int8Tensor

from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.config import DEFAULT_ALPHA, SmoothQuantConfig
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import int8_linear
from hf_smoothquant.selection import matches
from hf_smoothquant.smoothing.factors import activation_range, activation_scale, smoothing_factors

MAX_DB = 200.0
# 0.5 is the paper's and in the grid, so that the search is never worse than it on its own measure.
GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def alpha_setting(alpha: float | str | Mapping[str, float | str], names: Sequence[str]) -> float | str:
    """What the config says of a group: a number or `"auto"`. The first pattern that matches one of `names` decides."""
    if not isinstance(alpha, Mapping):
        return alpha
    for pattern, value in alpha.items():
        if any(matches(pattern, name) for name in names):
            return value
    return DEFAULT_ALPHA


def group_alpha(weights: Sequence[torch.Tensor], group: Group, config: SmoothQuantConfig) -> float:
    """The smoothing strength of one group: as configured, or searched."""
    alpha = alpha_setting(config.alpha, group.names)
    return search_alpha(weights, group, config) if alpha == "auto" else alpha


def search_alpha(weights: Sequence[torch.Tensor], group: Group, config: SmoothQuantConfig) -> float:
    """The alpha of `GRID` whose quantized group has the smallest output error on the group's sample of rows.

    It costs, per grid value, one quantization of the weights and one int8 product with the rows.

    Args:
        weights (`Sequence[torch.Tensor]`): `[N_i, K]` each, float; the weights of the group.
        group (`Group`): what calibration saw of its input.
        config (`SmoothQuantConfig`): says how weights and activations are quantized.
    """

    w_absmax = column_absmax(weights)

    def quality(alpha: float) -> float:
        factors = smoothing_factors(group.absmax, w_absmax, alpha)
        return group_sqnr_db(weights, quantize_group(weights, group, factors, config, act_ndim=2), group.rows)

    return max(GRID, key=quality)


def column_absmax(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Largest magnitude of each weight column over all Linears of a group: `[K]`, float32."""
    return torch.stack([weight.abs().amax(0).float() for weight in weights]).amax(0)


def quantize_group(
    weights: Sequence[torch.Tensor],
    group: Group,
    factors: torch.Tensor,
    config: SmoothQuantConfig,
    act_ndim: int | None = None,
) -> list[Int8Tensor]:
    """Quantizes the weights that read one input, with its factors `s`, `[K]`, and its static scale if it has one.

    A static scale is for inputs of `act_ndim` dimensions, by default those of calibration.
    """
    scale = zero_point = None
    if config.activation == "static" and config.symmetric:
        scale = activation_scale(group.absmax, factors)
    elif config.activation == "static":
        scale, zero_point = activation_range(group.minimum, group.maximum, factors)
    ndim = act_ndim or group.ndim
    return [quantize_weight(weight, factors, scale, zero_point, config=config, act_ndim=ndim) for weight in weights]


def group_sqnr_db(weights: Sequence[torch.Tensor], quantized: Sequence[torch.Tensor], rows: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio of the outputs of a group on `rows`, `[R, K]`, in dB.

    `10 log10(sum y^2 / sum (y - y_int8)^2)` over all Linears of the group, with the int8 product that inference uses.
    """
    rows = rows.float()
    signal = noise = torch.zeros(())
    for weight, int8 in zip(weights, quantized, strict=True):
        y = nn.functional.linear(rows, weight.float())
        y_int8 = int8_linear(rows, int8, None)
        signal = signal + y.square().sum()
        noise = noise + (y_int8 - y).square().sum()
    return _ratio_db(signal, noise)


def sqnr_db(reference: torch.Tensor, approximation: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio of one tensor, float32, in dB."""
    return _ratio_db(reference.square().sum(), (approximation - reference).square().sum())


def _ratio_db(signal: torch.Tensor, noise: torch.Tensor) -> float:
    tiny = torch.finfo(torch.float32).tiny
    ratio = 10 * torch.log10(signal.clamp(min=tiny) / noise.clamp(min=tiny))
    return ratio.clamp(-MAX_DB, MAX_DB).item()  # an all-zero or exact layer has no ratio that JSON could hold
