"""Which Linears of a model become int8, and why the others don't."""

import re
from dataclasses import dataclass, field

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from hf_smoothquant.config import SmoothQuantConfig

logger = logging.get_logger(__name__)

LINEARS = (nn.Linear, Conv1D)


@dataclass
class Selection:
    """The Linears of a model by full name: those to convert, and the reason for each that stays in float."""

    convert: dict[str, nn.Linear | Conv1D] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)


def select_linears(model: PreTrainedModel, config: SmoothQuantConfig) -> Selection:
    """Sorts the Linears of `model`, `Conv1D` among them, before anything is observed or smoothed.

    A Linear stays in float when its weight is tied to another module's, when it is the output embedding, when the model
    wants it in float32 (`_keep_in_fp32_modules`), when the user excludes it, when it has fewer than
    `config.min_features` inputs or outputs, or when its class overrides these (its own forward would be lost).

    A pattern of `config.modules_to_not_convert` that matches no Linear is warned about.
    """
    patterns = list(config.modules_to_not_convert or [])
    fp32_names = [*(model._keep_in_fp32_modules or []), *(model._keep_in_fp32_modules_strict or [])]
    tied = _tied_parameter_ids(model)
    output_embeddings = model.get_output_embeddings()
    selection, used = Selection(), set()
    for name, module in model.named_modules():
        if not isinstance(module, LINEARS):
            continue
        excluded_by = [pattern for pattern in patterns if matches(pattern, name)]
        used.update(excluded_by)
        if excluded_by:
            reason = f"excluded by {excluded_by[0]!r}"
        elif type(module) not in LINEARS:
            reason = f"is a {type(module).__name__}, not a plain nn.Linear"
        elif id(module.weight) in tied:
            reason = "weight tied to another module"
        elif module is output_embeddings:
            reason = "output embedding"
        elif any(matches(pattern, name) for pattern in fp32_names):
            reason = "kept in float32 by the model"
        elif (module.nx if isinstance(module, Conv1D) else module.in_features) == 1:
            reason = "one input feature"  # torchao 0.18 can't tell such a row's scale from a tensor's
        elif min(module.weight.shape) < config.min_features:
            reason = f"fewer than {config.min_features} features"
        else:
            selection.convert[name] = module
            continue
        selection.kept[name] = reason
    for pattern in patterns:
        if pattern not in used:
            logger.warning(f"modules_to_not_convert: {pattern!r} matches no Linear of {type(model).__name__}.")
    return selection


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` names the module `name`: a whole part of it between dots, or a `"re:"` pattern found in it."""
    if pattern.startswith("re:"):
        return re.search(pattern.removeprefix("re:"), name) is not None
    return f".{pattern}." in f".{name}."


def _tied_parameter_ids(model: PreTrainedModel) -> set[int]:
    """Ids of the weights that a Linear shares with a module of another kind, or that the model declares as tied."""
    declared = {*model.all_tied_weights_keys, *model.all_tied_weights_keys.values()}
    tied = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in declared}
    for module in model.modules():
        if not isinstance(module, LINEARS):
            tied.update(id(parameter) for parameter in module.parameters(recurse=False))
    return tied
