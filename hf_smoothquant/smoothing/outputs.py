"""The outputs of a model as tensors to compare."""

from collections.abc import Mapping

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def float_outputs(model: nn.Module, inputs: Mapping) -> list[torch.Tensor]:
    """All floating-point tensors that `model` returns for `inputs`, in float32."""
    return [leaf.float() for leaf in output_tensors(model(**inputs)) if leaf.is_floating_point()]


def output_tensors(outputs) -> list[torch.Tensor]:
    """The tensors in what a model returned, nested or not."""
    leaves = tree_leaves(tuple(outputs.values()) if isinstance(outputs, Mapping) else outputs)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
