"""`save_pretrained` of a quantized model: the checkpoint with its report, all of it or nothing."""

import inspect
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from torch import nn
from transformers.utils import CONFIG_NAME

from hf_smoothquant.report import REPORT_NAME

STAGING = ".saving-"


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
        folder.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
        try:
            asked["save_directory"] = staging
            type(self.model).save_pretrained(*call.args, **call.kwargs)
            report = getattr(getattr(self.model, "hf_quantizer", None), "report", None)
            if report is not None:
                report.save(staging)
            names = sorted(os.listdir(staging), key=lambda name: name == CONFIG_NAME)
            try:
                _publish(staging, folder, names, asked.get("variant"))
            except KeyboardInterrupt:
                _publish(staging, folder, names, asked.get("variant"))  # a few renames: to finish them loses nothing
                raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _publish(staging: Path, folder: Path, names: Iterable[str], variant: str | None) -> None:
    """Moves `names`, config.json the last of them, from `staging` to `folder`, where no other weights stay.

    transformers would prefer an old model.safetensors to new shards. It can be called again when it was interrupted.
    """
    if CONFIG_NAME in names:  # an adapter's files come without one, and belong to the model that is there
        (folder / CONFIG_NAME).unlink(missing_ok=True)
        dot = re.escape(f".{variant}") if variant else ""
        weights = re.compile(rf"model{dot}(-\d{{5}}-of-\d{{5}})?\.safetensors|model\.safetensors\.index{dot}\.json")
        for file in os.listdir(folder):
            if file not in names and (weights.fullmatch(file) or file == REPORT_NAME):
                (folder / file).unlink()
    for name in names:
        if (staging / name).exists():
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            os.replace(staging / name, folder / name)
