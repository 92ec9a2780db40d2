"""`Int8Linear`: an `nn.Linear` whose weight is an int8 tensor, right for every input that a Linear takes."""

from collections.abc import Callable

import torch
from torch import nn
from torchao.kernel import int_scaled_matmul
from torchao.quantization import Int8Tensor, MappingType

from hf_smoothquant import cpu
from hf_smoothquant.hints import eager_is_slow
from hf_smoothquant.tensor import SmoothQuantTensor

torch.compiler.allow_in_graph(int_scaled_matmul)  # Dynamo can't read its look-ups of the CPU; what is behind it can
# torchao 0.18 has no public name for it, and Dynamo can't follow Int8Tensor.__torch_function__ called as such.
TORCHAO_LINEAR = Int8Tensor._TORCH_FN_TABLE[Int8Tensor][nn.functional.linear]


class Int8Linear(nn.Linear):
    """`Y = X W^T + b` with int8 `W` (`SmoothQuantTensor`, `[N, K]`), `X` quantized on the way in (`int8_linear`)."""

    @classmethod
    def adopt(cls, linear: nn.Linear) -> "Int8Linear":
        """Turns `linear` into an `Int8Linear` in place: same object, so its other owners and hooks stay valid."""
        linear.__class__ = cls
        return linear

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            eager_is_slow()
        return super().forward(input)

    def extra_repr(self) -> str:
        weight = self.weight
        if not isinstance(weight, Int8Tensor):
            return super().extra_repr()
        kind = "dynamic" if weight.act_quant_scale is None else "static"
        activation = "none" if weight.act_quant_kwargs is None else kind
        return f"{super().extra_repr()}, activation={activation}, smoothed={weight.act_pre_scale is not None}"


def int8_linear(input: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The output `[..., N]` of an int8 weight `[N, K]` for `input`, `[..., K]`, of whatever shape and dtype.

    `torch.nn.functional.linear` of a `SmoothQuantTensor` is this. The arithmetic is torchao's (0.18). What is added is
    what that leaves to its callers: inputs with another number of dimensions than the calibrated one, inputs of zero
    tokens, and float16, whose range the unscaled products overflow (they reach `127 * 127 * K * x_scale`); those are
    computed in float32.
    """
    if input.numel() == 0:
        return input.new_empty(*input.shape[:-1], len(weight))
    if torch.is_grad_enabled() and input.requires_grad:
        return ForwardOnly.apply(input, weight, bias)
    x = as_calibrated(input, weight)
    product = _product(weight)
    if x.dtype == torch.float16:
        output = product(x.float(), weight, None if bias is None else bias.float()).half()
    else:
        output = product(x, weight, bias)
    return output if x is input else output.reshape(*input.shape[:-1], len(weight))


class ForwardOnly(torch.autograd.Function):
    """An int8 product in a graph: it can be computed with gradients on, and has none."""

    @staticmethod
    def forward(ctx, input: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return int8_linear(input, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError(
            "Int8 weights can't be trained, and no gradient passes through them. Train the float model (or "
            "model.dequantize()) and quantize it then; adapters trained on it can be loaded onto the int8 model."
        )


@SmoothQuantTensor.implements_torch_function(nn.functional.linear)
def _(func, types, args, kwargs):
    return int8_linear(*args, **kwargs)


def _product(weight: Int8Tensor) -> Callable:
    """What multiplies with `weight` on this CPU."""
    if weight.act_quant_kwargs is None:
        return torchao_product
    if cpu.SATURATES:
        return float_product
    is_symmetric = weight.act_quant_kwargs.mapping_type == MappingType.SYMMETRIC
    return torchao_product if is_symmetric else asymmetric_product


def torchao_product(x: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """torchao's own product, of a `SmoothQuantTensor`, too."""
    return TORCHAO_LINEAR(nn.functional.linear, (Int8Tensor,), (x, weight, bias), {})


def asymmetric_product(x: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The int8 product of inputs with a zero point `z`: `(X_q W_q^T) s_x s_w + (bias - z s_x s_w rowsum(W_q))`.

    torchao subtracts the zero point's share between the two scales, where Inductor's fusions don't look for it. As
    part of the bias it costs nothing: with a static scale it is a constant.

    Args:
        x (`torch.Tensor`): `[..., K]`, float32 or bfloat16.
        weight (`Int8Tensor`): `[N, K]`.
        bias (`torch.Tensor`, *optional*): `[N]`.
    """
    x_int8 = _quantize_input(x, weight)
    x_scale, zero_point = x_int8.scale.reshape(-1, 1), x_int8.zero_point.reshape(-1, 1)
    products = int_scaled_matmul(x_int8.qdata.reshape(-1, x.shape[-1]), weight.qdata.contiguous().t(), x_scale)
    row_sums = weight.qdata.sum(-1, dtype=torch.int32) * weight.scale.flatten()
    shift = zero_point * x_scale * row_sums
    output = products.to(x.dtype) * weight.scale.flatten()
    output = output + (-shift if bias is None else bias - shift)
    return output.to(x.dtype).reshape(*x.shape[:-1], len(weight))


def float_product(x: torch.Tensor, weight: Int8Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same values as the int8 product, with the int8 numbers multiplied in float32: for CPUs without VNNI.

    float32 holds sums of int8 products exactly up to 1,040 inputs, and to a relative 1e-7 beyond. There oneDNN's int8
    kernels saturate, and `torch._int_mm` is right and 25 times slower than a float product.

    Args:
        x (`torch.Tensor`): `[..., K]`, float32 or bfloat16.
        weight (`Int8Tensor`): `[N, K]`.
        bias (`torch.Tensor`, *optional*): `[N]`.
    """
    x_int8 = _quantize_input(x, weight)
    steps = x_int8.qdata.float()
    if weight.act_quant_kwargs.mapping_type == MappingType.ASYMMETRIC:
        steps = steps - x_int8.zero_point
    sums = nn.functional.linear(steps, weight.qdata.float())
    output = (sums * x_int8.scale).to(x.dtype) * weight.scale.flatten()  # torchao's order of roundings
    return (output if bias is None else output + bias).to(x.dtype)


def _quantize_input(x: torch.Tensor, weight: Int8Tensor) -> Int8Tensor:
    """`x` smoothed and in int8, as torchao's own product has it."""
    smoothed = x if weight.act_pre_scale is None else x * weight.act_pre_scale
    kwargs, scale, zero_point = weight.act_quant_kwargs, weight.act_quant_scale, weight.act_quant_zero_point
    return Int8Tensor.from_hp(smoothed, kwargs.granularity, kwargs.mapping_type, scale=scale, zero_point=zero_point)


def as_calibrated(x: torch.Tensor, weight: Int8Tensor) -> torch.Tensor:
    """`x` with as many dimensions as the static scale of `weight` has, which torchao asserts."""
    scale = weight.act_quant_scale
    if scale is None or scale.ndim == x.ndim:
        return x
    return x.reshape(*(1,) * (scale.ndim - 2), -1, x.shape[-1])
