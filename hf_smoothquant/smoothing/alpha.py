"""Smoothing strength per group: fixed, by pattern, or searched on real rows."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.config import DEFAULT_ALPHA, SmoothQuantConfig
from hf_smoothquant.linear import int8_linear, quantize_weight
from hf_smoothquant.selection import matches
from hf_smoothquant.smoothing.factors import activation_scale, smoothing_factors

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
    return search_alpha(weights, group.absmax, group.rows, config) if alpha == "auto" else alpha


def search_alpha(
    weights: Sequence[torch.Tensor], x_absmax: torch.Tensor, rows: torch.Tensor, config: SmoothQuantConfig
) -> float:
    """The alpha of `GRID` whose quantized group has the smallest output error on `rows`.

    It costs, per grid value, one quantization of the weights and one int8 product with the rows.

    Args:
        weights (`Sequence[torch.Tensor]`): `[N_i, K]` each, float; the weights of the group.
        x_absmax (`torch.Tensor`): `[K]`, float32; largest magnitude of each input channel over all data.
        rows (`torch.Tensor`): `[R, K]`; a sample of real inputs.
        config (`SmoothQuantConfig`): says whether activations are static or dynamic.
    """

    w_absmax = column_absmax(weights)

    def quality(alpha: float) -> float:
        factors = smoothing_factors(x_absmax, w_absmax, alpha)
        return group_sqnr_db(weights, quantize_group(weights, x_absmax, factors, config), rows)

    return max(GRID, key=quality)


def column_absmax(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Largest magnitude of each weight column over all Linears of a group: `[K]`, float32."""
    return torch.stack([weight.abs().amax(0).float() for weight in weights]).amax(0)


def quantize_group(
    weights: Sequence[torch.Tensor],
    x_absmax: torch.Tensor,
    factors: torch.Tensor,
    config: SmoothQuantConfig,
    act_ndim: int = 2,
) -> list[torch.Tensor]:
    """Quantizes the weights that read one input, with its factors `s`, `[K]`, and its static scale if it has one."""
    scale = activation_scale(x_absmax, factors) if config.activation == "static" else None
    return [quantize_weight(weight, factors, scale, act_ndim) for weight in weights]


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
    tiny = torch.finfo(torch.float32).tiny
    ratio = 10 * torch.log10(signal.clamp(min=tiny) / noise.clamp(min=tiny))
    return ratio.clamp(-MAX_DB, MAX_DB).item()  # an all-zero or exact layer has no ratio that JSON could hold
