"""An interrupted save leaves the old checkpoint whole, or nothing that loads (case: killed in the middle of saving)."""

import os
import shutil
import subprocess
import sys

import pytest
import torch
from conftest import TEXTS
from safetensors.torch import load_file
from transformers import AutoModelForQuestionAnswering, BertForQuestionAnswering, modeling_utils

from hf_smoothquant import SmoothQuantConfig, saving
from hf_smoothquant.report import REPORT_NAME

IDS = torch.arange(5, 25).reshape(2, 10)
SINGLE, SHARDED = "5GB", "60KB"


def fingerprint(model):
    """The alpha of config.json and the outputs: both have to be of the same model."""
    with torch.no_grad():
        return model.config.quantization_config.alpha, model(IDS).start_logits.tolist()


def outcome(folder, old, new):
    """Which of two models loads from `folder`; `"refused"` when none does for want of a config.json."""
    try:
        loaded = fingerprint(AutoModelForQuestionAnswering.from_pretrained(folder))
    except (OSError, ValueError) as error:
        return "refused" if "config.json" in str(error) else str(error)
    if loaded == fingerprint(old):
        return "old"
    return "new" if loaded == fingerprint(new) else "a mixture"


@pytest.fixture(scope="module")
def models(tiny_bert, tiny_config, save_tiny):
    """Two quantized models of the same shapes."""
    torch.manual_seed(1)
    quantized = []
    for folder, alpha in ((tiny_bert, 0.5), (save_tiny(BertForQuestionAnswering(tiny_config)), 0.75)):
        config = SmoothQuantConfig(dataset=TEXTS, alpha=alpha)
        arguments = {"quantization_config": config, "dtype": torch.float32}
        quantized.append(AutoModelForQuestionAnswering.from_pretrained(folder, **arguments))
    return quantized


# In a process of its own: saves a model over copies of another's checkpoint, each time in a fork that kills itself at
# another point: in the middle of a file of weights, or before the n-th file is moved into place.
KILL = """
import os, pathlib, signal, sys
import hf_smoothquant
from transformers import AutoModelForQuestionAnswering, modeling_utils

source, size, *folders = sys.argv[1:]
model = AutoModelForQuestionAnswering.from_pretrained(source)

def killing(function, at, half_written=False):
    left = iter(range(at - 1, -1, -1))
    def wrapped(*args, **kwargs):
        last = next(left) == 0
        if last and half_written:
            function(*args, **kwargs)
            os.truncate(args[1], os.path.getsize(args[1]) // 2)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapped

for folder in folders:
    if os.fork() == 0:
        where, at = pathlib.Path(folder).name.split("-")
        if where == "weights":
            modeling_utils.safe_save_file = killing(modeling_utils.safe_save_file, int(at), half_written=True)
        elif where == "move":
            os.replace = killing(os.replace, int(at))
        model.save_pretrained(folder, max_shard_size=size)
        os._exit(0)
    _, status = os.wait()
    print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else "saved")
"""


@pytest.mark.parametrize(("old_size", "new_size"), [(SINGLE, SINGLE), (SHARDED, SHARDED), (SINGLE, SHARDED)])
def test_kill_in_the_middle_of_saving(models, tmp_path, old_size, new_size):
    old, new = models
    old.save_pretrained(tmp_path / "old", max_shard_size=old_size)
    new.save_pretrained(tmp_path / "new")
    writing = ["weights-1"] + (["weights-2"] if new_size == SHARDED else [])
    folders = [tmp_path / point for point in (*writing, "move-1", "move-2", "never-0")]
    for folder in folders:
        shutil.copytree(tmp_path / "old", folder)
    arguments = [sys.executable, "-c", KILL, str(tmp_path / "new"), new_size, *map(str, folders)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["9"] * (len(folders) - 1) + ["saved"]
    outcomes = [outcome(folder, old, new) for folder in folders]
    assert outcomes == ["old"] * len(writing) + ["refused", "refused", "new"]


def test_an_error_or_ctrl_c_while_writing_keeps_the_old_checkpoint(models, tmp_path, monkeypatch):
    old, new = models
    old.save_pretrained(tmp_path)
    before = sorted(os.listdir(tmp_path))
    for error in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fail(*args, error=error, **kwargs):
            raise error

        monkeypatch.setattr(modeling_utils, "safe_save_file", fail)
        with pytest.raises(type(error)):
            new.save_pretrained(tmp_path)
        assert sorted(os.listdir(tmp_path)) == before and outcome(tmp_path, old, new) == "old"


def test_ctrl_c_while_files_are_exchanged_finishes_that(models, tmp_path, monkeypatch):
    old, new = models
    old.save_pretrained(tmp_path)
    replace, calls = os.replace, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(*args)

    monkeypatch.setattr(saving.os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        new.save_pretrained(tmp_path)
    assert outcome(tmp_path, old, new) == "new"


def test_no_weights_of_another_save_stay(models, tmp_path):
    """transformers would leave the old model.safetensors beside new shards, and load it."""
    old, new = models
    (tmp_path / "notes.txt").write_text("the user's")
    for model, size in ((old, SINGLE), (new, SHARDED), (old, SHARDED), (new, SINGLE)):
        model.save_pretrained(tmp_path, max_shard_size=size)
        assert outcome(tmp_path, old, new) == ("old" if model is old else "new")
        assert (tmp_path / "model.safetensors").exists() == (size == SINGLE)
        assert (tmp_path / "model.safetensors.index.json").exists() == (size == SHARDED)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors", "notes.txt", REPORT_NAME]


def test_a_variant_leaves_the_other_weights(models, tmp_path):
    old, new = models
    old.save_pretrained(tmp_path)
    new.save_pretrained(tmp_path, variant="new", max_shard_size=SHARDED)
    new.save_pretrained(tmp_path, variant="new")
    assert {"model.safetensors", "model.new.safetensors"} <= set(os.listdir(tmp_path))
    assert not any("-of-" in name or "index" in name for name in os.listdir(tmp_path))
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path, variant="new")
    assert fingerprint(again) == fingerprint(new)


def test_shards_of_two_saves_are_refused(models, tmp_path):
    """As a copy that was cut off leaves them: here only the shard of the embeddings, which have no checksum."""
    old, new = models
    for name, model in (("old", old), ("new", new)):
        model.save_pretrained(tmp_path / name, max_shard_size=SHARDED)
    shards = sorted((tmp_path / "old").glob("*.safetensors"))
    (embeddings,) = (shard for shard in shards if "bert.embeddings.position_embeddings.weight" in load_file(shard))
    shutil.copy(embeddings, tmp_path / "new")
    with pytest.raises(ValueError, match="not saved together"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path / "new")


def test_other_processes_write_nothing(models, tmp_path):
    models[0].save_pretrained(tmp_path, is_main_process=False)
    assert not any(file.suffix in (".json", ".safetensors") for file in tmp_path.iterdir())
