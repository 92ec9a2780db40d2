"""`save_pretrained` of a quantized model: the checkpoint with its report, all of it or nothing."""

import inspect
import os
import re
from pathlib import Path

from torch import nn
from transformers.utils import CONFIG_NAME

from hf_smoothquant.report import REPORT_NAME
from hf_smoothquant.staging import staged


class SavePretrained:
    """Stands in for `model.save_pretrained`: writes the checkpoint and its report aside, then moves them into place.

    transformers writes config.json first and weights over the old ones: interrupted, it leaves a new config with old
    weights, or shards of two models. Here an old checkpoint stays whole until the new one is written. While
    the files are exchanged there is no config.json, and the folder doesn't load.

    A dequantized model keeps it, so that no report of int8 weights stays beside the float weights. An object and not a
    bound method: that would make the model impossible to pickle.

    Args:
        model (`nn.Module`): the model, quantized or dequantized.
    """

    def __init__(self, model: nn.Module):
        self.model = model

    def __call__(self, save_directory: str | os.PathLike, *args, **kwargs) -> None:
        """Takes the arguments of `PreTrainedModel.save_pretrained`."""
        folder = Path(save_directory)
        call = inspect.signature(type(self.model).save_pretrained).bind(self.model, save_directory, *args, **kwargs)
        asked = call.arguments
        saves_here = self.model.should_save_on_this_rank(asked.get("is_main_process", True))
        if folder.is_file() or not saves_here or asked.get("distributed_checkpoint"):
            type(self.model).save_pretrained(*call.args, **call.kwargs)
            return
        if asked.get("push_to_hub"):
            asked.setdefault("kwargs", {}).setdefault("repo_id", folder.name)
        # An adapter's files come without config.json, and belong to the model that is there. Otherwise no other weights
        # stay: transformers would prefer an old model.safetensors to new shards.
        variant = asked.get("variant")
        dot = re.escape(f".{variant}") if variant else ""
        weights = re.compile(rf"model{dot}(-\d{{5}}-of-\d{{5}})?\.safetensors|model\.safetensors\.index{dot}\.json")
        with staged(folder, CONFIG_NAME, lambda file: bool(weights.fullmatch(file)) or file == REPORT_NAME) as staging:
            asked["save_directory"] = staging
            type(self.model).save_pretrained(*call.args, **call.kwargs)
            report = getattr(getattr(self.model, "hf_quantizer", None), "report", None)
            if report is not None:
                report.save(staging)
