"""Int8 weights: from float ones and from their parts."""

import torch
from torchao.quantization import Int8Tensor, MappingType, PerRow, PerTensor
from torchao.quantization.quant_primitives import choose_qparams_affine, quantize_affine
from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs

from hf_smoothquant.config import SmoothQuantConfig
from hf_smoothquant.smoothing.factors import INT8_MAX
from hf_smoothquant.tensor import SmoothQuantTensor


def activation_kwargs(config: SmoothQuantConfig, static: bool) -> QuantizeTensorToInt8Kwargs | None:
    """How torchao is to quantize the input of a weight; `None` leaves it in float (`activation="none"`).

    Args:
        config (`SmoothQuantConfig`): the model's, or a checkpoint's.
        static (`bool`): whether the weight has a scale for its input; with a fallback not all of a static model's do.
    """
    if config.activation == "none":
        return None
    per_tensor = static or (config.activation == "dynamic" and config.activation_granularity == "tensor")
    mapping = MappingType.SYMMETRIC if config.symmetric else MappingType.ASYMMETRIC
    return QuantizeTensorToInt8Kwargs(PerTensor() if per_tensor else PerRow(), mapping)


def int8_tensor(
    qdata: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    act_quant_kwargs: QuantizeTensorToInt8Kwargs | None,
    act_pre_scale: torch.Tensor | None = None,
    act_quant_scale: torch.Tensor | None = None,
    act_quant_zero_point: torch.Tensor | None = None,
) -> Int8Tensor:
    """Joins the parts of an int8 weight, `[N, K]`, with a scale per row, `[N, 1]`."""
    return SmoothQuantTensor(
        qdata,
        scale,
        [1, qdata.shape[1]],
        dtype,
        act_quant_scale=act_quant_scale,
        act_quant_zero_point=act_quant_zero_point,
        act_pre_scale=act_pre_scale,
        act_quant_kwargs=act_quant_kwargs,
    )


def quantize_weight(
    weight: torch.Tensor,
    factors: torch.Tensor | None = None,
    act_scale: torch.Tensor | None = None,
    act_zero_point: torch.Tensor | None = None,
    *,
    config: SmoothQuantConfig | None = None,
    act_ndim: int = 3,
) -> Int8Tensor:
    """Quantizes a float weight, symmetric, with the activation's side attached.

    `q = round(W * s / scale)`, `scale = max|row of W * s| / 127`; the range is [-127, 127], so that negation is exact
    and no product reaches 2^14. The arithmetic is float32 whatever the weight's dtype.

    Args:
        weight (`torch.Tensor`): `[N, K]`, float.
        factors (`torch.Tensor`, *optional*): `s`, `[K]`, float32; stored as `act_pre_scale = 1 / s`.
        act_scale (`torch.Tensor`, *optional*): scalar, float32; the static scale of the smoothed input. Without one it
            is quantized at run time.
        act_zero_point (`torch.Tensor`, *optional*): scalar, int8; of a static asymmetric input.
        config (`SmoothQuantConfig`, *optional*): says how weights and activations are quantized; the default one if
            there is none.
        act_ndim (`int`, *optional*, defaults to 3): number of dimensions of the input that was calibrated on.

    Returns:
        `Int8Tensor`: `[N, K]`, of the weight's dtype on the outside.
    """
    config = config or SmoothQuantConfig()
    smoothed = weight.detach().float()
    if factors is not None:
        smoothed = smoothed * factors
    block_size = [1, weight.shape[1]]
    scale, zero_point = choose_qparams_affine(
        smoothed,
        MappingType.SYMMETRIC,
        block_size,
        torch.int8,
        quant_min=-INT8_MAX,
        quant_max=INT8_MAX,
        eps=torch.finfo(torch.float32).tiny,
        scale_dtype=torch.float32,
        zero_point_dtype=torch.int8,
        keepdim=True,
    )
    if config.weight_granularity == "tensor":
        # The largest of all rows for each of them: to whatever reads the weight it looks the same as one per row.
        scale = scale.amax().expand_as(scale).contiguous()
    qdata = quantize_affine(smoothed, block_size, scale, zero_point, torch.int8, -INT8_MAX, INT8_MAX)
    shape = (1,) * act_ndim
    return int8_tensor(
        qdata,
        scale,
        weight.dtype,
        activation_kwargs(config, static=act_scale is not None),
        act_pre_scale=None if factors is None else 1 / factors,
        act_quant_scale=None if act_scale is None else act_scale.float().reshape(shape),
        act_quant_zero_point=None if act_zero_point is None else act_zero_point.reshape(shape),
    )
