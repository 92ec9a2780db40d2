"""The true size of a quantized model."""

from torch import nn
from torchao.quantization import Int8Tensor


class MemoryFootprint:
    """Stands in for `model.get_memory_footprint`, which counts an int8 weight at the size of its outer dtype.

    An object and not a bound method: that would make the model impossible to pickle.

    Args:
        model (`nn.Module`): the quantized model.
    """

    def __init__(self, model: nn.Module):
        self.model = model

    def __call__(self, return_buffers: bool = True) -> int:
        """Bytes of all parameters, scales and smoothing factors included, and of the buffers unless told not to."""
        tensors = [*self.model.parameters(), *(self.model.buffers() if return_buffers else ())]
        return sum(_num_bytes(tensor) for tensor in tensors)


def _num_bytes(tensor) -> int:
    if not isinstance(tensor, Int8Tensor):
        return tensor.nelement() * tensor.element_size()
    names = tensor.tensor_data_names + tensor.optional_tensor_data_names
    parts = (getattr(tensor, name) for name in names)
    return sum(_num_bytes(part) for part in parts if part is not None)
