"""Data and models by their hub ids, against a local stand-in for the hub."""

import json
import subprocess
import sys

import datasets
import pytest
from conftest import TEXTS
from hub_server import HubServer

from hf_smoothquant.report import REPORT_NAME

PRELUDE = """
import json, torch, hf_smoothquant
from hf_smoothquant import SmoothQuantConfig
from transformers import AutoModelForQuestionAnswering
"""


@pytest.fixture
def hub():
    with HubServer() as server:
        yield server


def run(code, hub, cache):
    """Runs `code` in a process that takes `hub` for the hub; returns what it prints last, read as JSON."""
    environment = hub.environment(cache) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_huge_dataset_is_read_as_a_stream(hub, tiny_bert, tmp_path):
    row = {"text": " ".join(TEXTS * 10), "label": 0}
    hub.add("datasets/user/huge", {"train.jsonl": (json.dumps(row) + "\n").encode() * 15_000})
    table = tmp_path / "table.parquet"
    datasets.Dataset.from_dict({"question": ["who", "what"], "context": TEXTS[:2]}).to_parquet(table)
    hub.add("datasets/user/pairs", {"README.md": b"# Pairs", "data/validation-00000.parquet": table.read_bytes()})
    load = f"AutoModelForQuestionAnswering.from_pretrained({str(tiny_bert)!r}, quantization_config=config)"
    code = f"""
records = []
for config in (
    SmoothQuantConfig(dataset="user/huge", num_samples=16),
    SmoothQuantConfig(dataset="user/pairs", dataset_kwargs={{"split": "validation"}}),
):
    records.append({load}.config.quantization_config.calibration)
try:
    {load.replace("=config", "=SmoothQuantConfig(dataset='user/none')")}
except ValueError as error:
    records.append(str(error))
print(json.dumps(records))
"""
    huge, pairs, error = run(code, hub, tmp_path / "cache")
    assert huge == {"dataset": "user/huge", "num_samples": 16, "num_tokens": 16 * 128}
    assert pairs["dataset"] == "user/pairs" and pairs["num_samples"] == 2
    assert "'user/none' can't be loaded" in error and "doesn't exist on the Hub" in error
    size = len(hub.repos["datasets/user/huge"]["train.jsonl"])
    # datasets 5.2 asks for the first 15 MiB, once for the columns and once for the rows.
    assert 0 < hub.sent["datasets/user/huge/train.jsonl"] < size


def test_a_model_goes_up_and_comes_down(hub, tiny_bert, tmp_path):
    code = f"""
config = SmoothQuantConfig(dataset=[torch.arange(5, 25).reshape(2, 10)])
model = AutoModelForQuestionAnswering.from_pretrained({str(tiny_bert)!r}, quantization_config=config)
model.push_to_hub("user/tiny")
again = AutoModelForQuestionAnswering.from_pretrained("user/tiny")
ids = torch.arange(5, 25).reshape(2, 10)
print(json.dumps(torch.equal(model(ids).start_logits, again(ids).start_logits)))
"""
    assert run(code, hub, tmp_path / "cache") is True
    assert {"config.json", "model.safetensors", REPORT_NAME} <= hub.repos["user/tiny"].keys()
