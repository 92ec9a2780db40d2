"""`Int8Linear`: an `nn.Linear` whose weight is a torchao `Int8Tensor`, right for every input that a Linear takes."""

import torch
from torch import nn
from torchao.quantization import Int8Tensor, MappingType, PerRow, PerTensor
from torchao.quantization.quant_primitives import choose_qparams_affine, quantize_affine
from torchao.quantization.quantize_.workflows import QuantizeTensorToInt8Kwargs

from hf_smoothquant import cpu
from hf_smoothquant.smoothing.factors import INT8_MAX


class Int8Linear(nn.Linear):
    """`Y = X W^T + b` with int8 `W` (`Int8Tensor`, `[N, K]`) and `X` quantized on the way in.

    The arithmetic is torchao's. This class adds what that leaves to its callers (torchao 0.18): inputs with another
    number of dimensions than the calibrated one, inputs of zero tokens, and float16, whose range the unscaled products
    overflow (they reach `127 * 127 * K * x_scale`); those are computed in float32.
    """

    @classmethod
    def adopt(cls, linear: nn.Linear) -> "Int8Linear":
        """Turns `linear` into an `Int8Linear` in place: same object, so its other owners and hooks stay valid."""
        linear.__class__ = cls
        return linear

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not isinstance(self.weight, Int8Tensor):
            return super().forward(input)
        return int8_linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        weight = self.weight
        if not isinstance(weight, Int8Tensor):
            return super().extra_repr()
        activation = "dynamic" if weight.act_quant_scale is None else "static"
        return f"{super().extra_repr()}, activation={activation}, smoothed={weight.act_pre_scale is not None}"


def int8_linear(input: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The output `[..., N]` of an int8 weight `[N, K]` for `input`, `[..., K]`, of whatever shape and dtype."""
    if input.numel() == 0:
        return input.new_empty(*input.shape[:-1], len(weight))
    x = as_calibrated(input, weight)
    int8_inputs = weight.act_quant_kwargs is not None
    product = float_product if cpu.SATURATES and int8_inputs else nn.functional.linear
    if x.dtype == torch.float16:
        output = product(x.float(), weight, None if bias is None else bias.float()).half()
    else:
        output = product(x, weight, bias)
    return output if x is input else output.reshape(*input.shape[:-1], len(weight))


def float_product(x: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same values as torchao's int8 product, with the int8 numbers multiplied in float32: for CPUs without VNNI.

    float32 holds sums of int8 products exactly up to 1,040 inputs, and to a relative 1e-7 beyond. There oneDNN's int8
    kernels saturate, and `torch._int_mm` is right and 25 times slower than a float product.

    Args:
        x (`torch.Tensor`): `[..., K]`, float32 or bfloat16.
        weight (`Int8Tensor`): `[N, K]`.
        bias (`torch.Tensor`, *optional*): `[N]`.
    """
    smoothed = x if weight.act_pre_scale is None else x * weight.act_pre_scale
    kwargs = weight.act_quant_kwargs
    x_int8 = Int8Tensor.from_hp(smoothed, kwargs.granularity, kwargs.mapping_type, scale=weight.act_quant_scale)
    sums = nn.functional.linear(x_int8.qdata.float(), weight.qdata.float())
    output = (sums * x_int8.scale).to(x.dtype) * weight.scale.flatten()  # torchao's order of roundings
    return (output if bias is None else output + bias).to(x.dtype)


def as_calibrated(x: torch.Tensor, weight: Int8Tensor) -> torch.Tensor:
    """`x` with as many dimensions as the static scale of `weight` has, which torchao asserts."""
    scale = weight.act_quant_scale
    if scale is None or scale.ndim == x.ndim:
        return x
    return x.reshape(*(1,) * (scale.ndim - 2), -1, x.shape[-1])


def int8_tensor(
    qdata: torch.Tensor,
    scale: torch.Tensor,
    dtype: torch.dtype,
    act_pre_scale: torch.Tensor | None = None,
    act_quant_scale: torch.Tensor | None = None,
) -> Int8Tensor:
    """Joins the parts of an int8 weight: symmetric per row; static activations with `act_quant_scale`, else dynamic."""
    granularity = PerRow() if act_quant_scale is None else PerTensor()
    return Int8Tensor(
        qdata,
        scale,
        [1, qdata.shape[1]],
        dtype,
        act_quant_scale=act_quant_scale,
        act_pre_scale=act_pre_scale,
        act_quant_kwargs=QuantizeTensorToInt8Kwargs(granularity, MappingType.SYMMETRIC),
    )


def quantize_weight(
    weight: torch.Tensor, factors: torch.Tensor | None = None, act_scale: torch.Tensor | None = None, act_ndim: int = 3
) -> Int8Tensor:
    """Quantizes a float weight for W8A8: symmetric per row, with the activation's side attached.

    `q = round(W * s / scale)`, `scale = max|row of W * s| / 127`; the range is [-127, 127], so that negation is exact
    and no product reaches 2^14. The arithmetic is float32 whatever the weight's dtype.

    Args:
        weight (`torch.Tensor`): `[N, K]`, float.
        factors (`torch.Tensor`, *optional*): `s`, `[K]`, float32; stored as `act_pre_scale = 1 / s`.
        act_scale (`torch.Tensor`, *optional*): scalar, float32; the static scale of the smoothed input. `None` for a
            dynamic scale per token.
        act_ndim (`int`, *optional*, defaults to 3): number of dimensions of the input that was calibrated on.

    Returns:
        `Int8Tensor`: `[N, K]`, of the weight's dtype on the outside.
    """
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
    qdata = quantize_affine(smoothed, block_size, scale, zero_point, torch.int8, -INT8_MAX, INT8_MAX)
    return int8_tensor(
        qdata,
        scale,
        weight.dtype,
        act_pre_scale=None if factors is None else 1 / factors,
        act_quant_scale=None if act_scale is None else act_scale.float().reshape((1,) * act_ndim),
    )


def dequantize_weight(weight: Int8Tensor) -> torch.Tensor:
    """The float weight that `weight` stands for, smoothing undone: `[N, K]`, of the weight's outer dtype."""
    floats = weight.dequantize(torch.float32)
    if weight.act_pre_scale is not None:
        floats = floats * weight.act_pre_scale
    return floats.to(weight.dtype)
