import subprocess
import sys

import pytest
import torch
from conftest import TEXTS
from torchao.quantization import Int8Tensor
from transformers import AutoModelForQuestionAnswering

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.distributed import merge_statistics
from hf_smoothquant.calibration.observer import SAMPLE_ROWS, LinearStatistics, RowSample

IDS = torch.arange(5, 25).reshape(2, 10)
SCRIPT = """
import sys, torch, torch.distributed as dist
import hf_smoothquant
from transformers import AutoModelForQuestionAnswering
folder, out, bad = sys.argv[1:]
dist.init_process_group("gloo")
ids = [torch.arange(5, 25).reshape(2, 10) + n for n in range(5)]
if bad == "bad":
    ids[1] = torch.full((1, 4), 10**6)  # falls to process 1
config = hf_smoothquant.SmoothQuantConfig(dataset=ids[:1] if bad == "few" else ids)
try:
    model = AutoModelForQuestionAnswering.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    torch.save((model.state_dict(), model.config.quantization_config.to_dict()), f"{out}/{dist.get_rank()}.pt")
    model.save_pretrained(f"{out}/model")
except Exception as error:
    sys.stdout.write(f"process {dist.get_rank()} {type(error).__name__} {error}\\n")  # in one piece: two write at once
dist.destroy_process_group()
"""


def launch(tmp_path, folder, *arguments):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    run = subprocess.run(
        [*command, tmp_path / "script.py", folder, tmp_path, *arguments], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_two_processes_equal_one(tiny_bert, tmp_path):
    launch(tmp_path, tiny_bert, "good")
    config = SmoothQuantConfig(dataset=[IDS + n for n in range(5)])
    arguments = {"quantization_config": config, "dtype": torch.float32}
    alone = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, **arguments)
    names = Int8Tensor.tensor_data_names + Int8Tensor.optional_tensor_data_names
    for rank in (0, 1):
        state, stored = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert stored == alone.config.quantization_config.to_dict()
        for name, tensor in alone.state_dict().items():
            for part in names if isinstance(tensor, Int8Tensor) else ("data",):
                expected, got = getattr(tensor, part), getattr(state[name], part)
                assert expected is got is None or torch.equal(expected, got), (name, part)
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        assert torch.equal(again(IDS).start_logits, alone(IDS).start_logits)


@pytest.mark.slow
def test_fewer_batches_than_processes(tiny_bert, tmp_path):
    assert launch(tmp_path, tiny_bert, "few") == ""
    states = [torch.load(tmp_path / f"{rank}.pt", weights_only=False)[0] for rank in (0, 1)]
    for name, tensor in states[0].items():
        other = states[1][name]
        if isinstance(tensor, Int8Tensor):
            assert torch.equal(tensor.qdata, other.qdata) and torch.equal(tensor.scale, other.scale)
        else:
            assert torch.equal(tensor, other)


def test_a_failure_ends_all_processes(tiny_bert, tmp_path):
    output = launch(tmp_path, tiny_bert, "bad")
    assert "process 1 IndexError" in output
    assert "process 0 ValueError Calibration failed in process 1" in output


def test_merging():
    def statistics(absmax, inputs, seed):
        sample = RowSample(seed)
        sample.add(torch.full((100, 2), float(seed)))
        maximum = torch.tensor(absmax)
        return LinearStatistics(-maximum / 2, maximum, 3, sample, inputs)

    one = {"q": statistics([1.0, 5.0], 7, 0), "k": statistics([1.0, 5.0], 7, 0), "o": statistics([1.0, 1.0], 8, 0)}
    two = {"q": statistics([2.0, 3.0], 9, 1), "k": statistics([2.0, 3.0], 10, 1)}
    merged = merge_statistics([one, two])
    assert merged["q"].maximum.tolist() == [2.0, 5.0] and merged["o"].maximum.tolist() == [1.0, 1.0]
    assert merged["q"].minimum.tolist() == [-1.0, -2.5]
    assert len({merged[name].inputs for name in "qko"}) == 3  # in the second process q and k read different tensors
    assert merge_statistics([one, one])["q"].inputs == merge_statistics([one, one])["k"].inputs
    rows = merged["q"].sample.rows
    assert len(rows) == SAMPLE_ROWS and 20 < (rows == 1).all(1).sum() < 108


def test_single_process_needs_no_group():
    if torch.distributed.is_initialized():
        pytest.skip("a process group of another test")
    from hf_smoothquant.calibration.distributed import rank_and_world_size

    assert rank_and_world_size() == (0, 1) and len(TEXTS) > 1
