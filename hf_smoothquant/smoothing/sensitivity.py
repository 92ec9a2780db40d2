"""What int8 Linears do to the outputs of the model as a whole."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn
from torchao.quantization import Int8Tensor
from transformers import PreTrainedModel

from hf_smoothquant.linear import int8_linear
from hf_smoothquant.smoothing.outputs import float_outputs


class Sensitivity:
    """Measures the output error of a float model while some of its Linears compute in int8.

    Args:
        model (`PreTrainedModel`): the calibrated float model; it isn't changed.
        samples (`Sequence[Mapping]`): its inputs, batches of one.
    """

    def __init__(self, model: PreTrainedModel, samples: Sequence[Mapping]):
        self._model = model
        self._samples = samples
        self._reference = [float_outputs(model, sample) for sample in samples]

    def noise(self, weights: Mapping[nn.Module, Int8Tensor]) -> float:
        """The noise-to-signal ratio of the outputs with `weights` in place of the float ones of their modules.

        `sum (y - y_int8)^2 / sum y^2` over all samples, of real tokens only, averaged over the tensors that the model
        returns. In dB it is `-noise_to_db`. Errors of single layers are nearly uncorrelated: their ratios add up.
        """

        def compute(weight):
            return lambda module, args, kwargs, output: int8_linear(
                args[0] if args else kwargs["input"], weight, module.bias
            )

        handles = [
            module.register_forward_hook(compute(weight), with_kwargs=True) for module, weight in weights.items()
        ]
        try:
            errors = signals = torch.zeros(len(self._reference[0]))
            for sample, reference in zip(self._samples, self._reference, strict=True):
                outputs = float_outputs(self._model, sample)
                pairs = [_real(y, sample) - _real(out, sample) for y, out in zip(reference, outputs, strict=True)]
                errors = errors + torch.stack([difference.square().sum() for difference in pairs])
                signals = signals + torch.stack([_real(y, sample).square().sum() for y in reference])
        finally:
            for handle in handles:
                handle.remove()
        return (errors / signals.clamp(min=torch.finfo(torch.float32).tiny)).mean().item()


def noise_to_db(noise: float) -> float:
    """The signal-to-noise ratio in dB of a noise-to-signal ratio; at most 200, for no noise at all."""
    return -10 * math.log10(max(noise, 1e-20))


def _real(output: torch.Tensor, sample: Mapping) -> torch.Tensor:
    """`output` without its padded positions, where it has a position per token."""
    for key in ("attention_mask", "decoder_attention_mask"):
        mask = sample.get(key)
        if mask is not None and output.shape[: mask.ndim] == mask.shape:
            return output[mask.bool()]
    return output
