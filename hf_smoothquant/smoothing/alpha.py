"""Smoothing strength per group: fixed, by pattern, or searched on real rows."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hf_smoothquant.calibration.observer import Group
from hf_smoothquant.config import DEFAULT_ALPHA, SmoothQuantConfig
from hf_smoothquant.linear import quantize_weight
from hf_smoothquant.selection import matches
from hf_smoothquant.smoothing.factors import activation_scale, smoothing_factors

# 0.5 is the paper's and in the grid, so that the search is never worse than it on its own measure.
MAX_DB = 200.0
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

    def quality(alpha: float) -> float:
        return group_sqnr_db(weights, quantize_group(weights, x_absmax, alpha, config)[0], rows)

    return max(GRID, key=quality)


def quantize_group(
    weights: Sequence[torch.Tensor], x_absmax: torch.Tensor, alpha: float, config: SmoothQuantConfig, act_ndim: int = 2
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Quantizes the weights that read one input, with common factors; returns them and `s`, `[K]`, float32."""
    factors = group_factors(weights, x_absmax, alpha)
    scale = activation_scale(x_absmax, factors) if config.activation == "static" else None
    return [quantize_weight(weight, factors, scale, act_ndim) for weight in weights], factors


def group_factors(weights: Sequence[torch.Tensor], x_absmax: torch.Tensor, alpha: float) -> torch.Tensor:
    """`s` of a group, `[K]`, float32: from the maxima of the weight columns over all its Linears."""
    w_absmax = torch.stack([weight.abs().amax(0).float() for weight in weights]).amax(0)
    return smoothing_factors(x_absmax, w_absmax, alpha)


def group_sqnr_db(weights: Sequence[torch.Tensor], quantized: Sequence[torch.Tensor], rows: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio of the outputs of a group on `rows`, `[R, K]`, in dB.

    `10 log10(sum y^2 / sum (y - y_int8)^2)` over all Linears of the group, with the int8 product that inference uses.
    """
    rows = rows.float()
    signal = noise = torch.zeros(())
    for weight, int8 in zip(weights, quantized, strict=True):
        y = nn.functional.linear(rows, weight.float())
        x = rows.reshape(*(1,) * (_ndim(int8) - 2), *rows.shape)
        signal = signal + y.square().sum()
        noise = noise + (nn.functional.linear(x, int8).reshape(y.shape) - y).square().sum()
    tiny = torch.finfo(torch.float32).tiny
    ratio = 10 * torch.log10(signal.clamp(min=tiny) / noise.clamp(min=tiny))
    return ratio.clamp(-MAX_DB, MAX_DB).item()  # an all-zero or exact layer has no ratio that JSON could hold


def _ndim(int8: torch.Tensor) -> int:
    return 2 if int8.act_quant_scale is None else int8.act_quant_scale.ndim
