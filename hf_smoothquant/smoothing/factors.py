"""The arithmetic of SmoothQuant: smoothing factors and the activation scales that follow from them."""

import torch

MIN_FACTOR, MAX_FACTOR = 1e-4, 1e4
INT8_MIN, INT8_MAX = -128, 127


def smoothing_factors(x_absmax: torch.Tensor, w_absmax: torch.Tensor, alpha: float) -> torch.Tensor:
    """Per-channel factors `s` for `Y = (X / s) (W * s)^T`: `s_j = max|X_j|^alpha / max|W_:,j|^(1 - alpha)`.

    Equation 4 of SmoothQuant (https://arxiv.org/abs/2211.10438, section 4). For `max|X_j| = 100`, `max|W_:,j| = 0.1`
    and `alpha = 0.5`, `s_j = 31.62` and both smoothed maxima are 3.162.

    A channel that was always zero in calibration, or whose weight column is zero, gives no ratio to balance: its
    factor is 1, so that a value met there later is neither blown up nor lost. Factors are clamped to [1e-4, 1e4].

    Args:
        x_absmax (`torch.Tensor`): `[K]`, float; largest magnitude of each input channel.
        w_absmax (`torch.Tensor`): `[K]`, float; largest magnitude of each weight column, over all Linears of the group.
        alpha (`float`): smoothing strength in [0, 1].

    Returns:
        `torch.Tensor`: `s`, `[K]`, float32, finite and positive.
    """
    x_absmax, w_absmax = x_absmax.float(), w_absmax.float()
    factors = x_absmax.pow(alpha) / w_absmax.pow(1 - alpha)
    alive = (x_absmax > 0) & (w_absmax > 0)
    return torch.where(alive, factors.clamp(MIN_FACTOR, MAX_FACTOR), torch.ones_like(factors))


def activation_range(
    minimum: torch.Tensor, maximum: torch.Tensor, factors: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The static asymmetric scale and zero point of the smoothed input: its range, zero in it, over all of int8.

    `scale = (hi - lo) / 255` and `zero_point = round(-128 - lo / scale)`, with `lo = min(0, min_j(min X_j / s_j))` and
    `hi = max(0, max_j(max X_j / s_j))`. Zero stays exact. One-sided inputs (after GELU or ReLU) gain up to one bit over
    the symmetric scale.

    Args:
        minimum, maximum (`torch.Tensor`): `[K]`, float; smallest and largest value of each input channel.
        factors (`torch.Tensor`): `[K]`, float32; the result of `smoothing_factors`.

    Returns:
        Two scalars: the scale, float32, positive; and the zero point, int8.
    """
    low = (minimum.float() / factors).amin().clamp(max=0)
    high = (maximum.float() / factors).amax().clamp(min=0)
    scale = ((high - low) / (INT8_MAX - INT8_MIN)).clamp(min=torch.finfo(torch.float32).eps)
    zero_point = (INT8_MIN - low / scale).round().clamp(INT8_MIN, INT8_MAX)
    return scale, zero_point.to(torch.int8)


def activation_scale(x_absmax: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The static symmetric scale of the smoothed input: `max_j(max|X_j| / s_j) / 127`.

    It needs no second pass over the data, since the maximum of `X_j / s_j` is that of `X_j` divided by `s_j`.

    Args:
        x_absmax (`torch.Tensor`): `[K]`, float; largest magnitude of each input channel.
        factors (`torch.Tensor`): `[K]`, float32; the result of `smoothing_factors`.

    Returns:
        `torch.Tensor`: a scalar, float32, positive.
    """
    scale = (x_absmax.float() / factors).amax() / INT8_MAX
    return scale.clamp(min=torch.finfo(torch.float32).eps)
