"""The harness itself, on the tiny model and examples of the scripts' `--demo`."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

pytest.importorskip("evaluate")

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.evaluation import runner
from hf_smoothquant.evaluation.command import evaluate_mnli, evaluate_squad
from hf_smoothquant.evaluation.demo import mnli_demo, squad_demo
from hf_smoothquant.evaluation.modes import Mode
from hf_smoothquant.evaluation.nli import NliTask


@pytest.fixture(scope="module")
def mnli(tmp_path_factory):
    """Arguments for `evaluate_mnli`: model, --data, file."""
    return mnli_demo(tmp_path_factory.mktemp("mnli"))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(runner, "CHUNK", 5)  # of twelve examples: 5, 5, 2


def lines(folder):
    return [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines() if line]


def test_predictions_are_those_of_the_plain_model(mnli, tmp_path):
    name, _, data = mnli
    task = NliTask.load(data)
    outcome = runner.run_mode(task, Mode("fp32"), name, tmp_path)
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    expected = []
    for example in task.examples:
        with torch.no_grad():
            logits = model(**tokenizer(example["premise"], example["hypothesis"], return_tensors="pt")).logits
        expected.append(model.config.id2label[int(logits.argmax())])
    assert outcome.predictions == expected
    right = [a == example["label"] for a, example in zip(expected, task.examples, strict=True)]
    assert task.scores(outcome.predictions)["accuracy"].mean() == pytest.approx(100 * np.mean(right))
    assert task.compute(outcome.predictions)[0]["accuracy"] == pytest.approx(100 * np.mean(right))


def test_a_stopped_run_goes_on(mnli, tmp_path, monkeypatch):
    """Killed in the third chunk, with half a line of it written: only that chunk is computed again."""
    name, _, data = mnli
    task = NliTask.load(data)
    expected = runner.run_mode(task, Mode("fp32"), name, tmp_path / "whole").predictions
    predict, calls = task.predict, []

    def predict_two(model, tokenizer, examples):
        calls.append(len(examples))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return predict(model, tokenizer, examples)

    monkeypatch.setattr(task, "predict", predict_two)
    with pytest.raises(KeyboardInterrupt):
        runner.run_mode(task, Mode("fp32"), name, tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    with file.open("a") as handle:
        handle.write('\n{"chunk": 2, "seconds": 0.1, "predic')
    assert runner.run_mode(task, Mode("fp32"), name, tmp_path).predictions == expected
    assert calls == [5, 5, 2, 2]
    runner.run_mode(task, Mode("fp32"), name, tmp_path)
    assert len(calls) == 4  # all is there


def test_answers_belong_to_a_mode_settings_and_weights(mnli, tmp_path):
    name, _, data = mnli
    task = NliTask.load(data)
    runner.run_mode(task, Mode("fp32"), name, tmp_path)
    runner.run_mode(task, Mode("bf16"), name, tmp_path)
    runner.run_mode(NliTask.load(data, max_length=16), Mode("fp32"), name, tmp_path)
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    before = runner.fingerprint(name)
    os.utime(os.path.join(name, "model.safetensors"), (1, 1))
    assert runner.fingerprint(name) != before


def test_two_processes_give_the_same_totals(mnli, tmp_path):
    name, _, data = mnli
    arguments = ["--modes", "fp32", "static", "--batch-size", "2"]
    single = evaluate_mnli([name, "--data", data, *arguments, "-o", str(tmp_path / "one")])["demo"]
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\n"
        "from hf_smoothquant.evaluation import command, runner\n"
        "runner.CHUNK = 5\n"
        "command.evaluate_mnli(sys.argv[1:])\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(script)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    subprocess.run(
        [*launch, name, "--data", data, *arguments, "-o", str(tmp_path / "two")], check=True, env=environment
    )
    double = json.loads((tmp_path / "two" / "results.json").read_text())
    assert len(list((tmp_path / "two" / "predictions").glob("*.1.jsonl"))) == 2  # the second process had work to do
    for one, two in zip(single["modes"], double["modes"], strict=True):
        assert one["metrics"] == two["metrics"] and one["difference"] == two["difference"]
        assert one["changed_predictions"] == two["changed_predictions"]
    sqnr = [summary["modes"][1]["mean_group_sqnr_db"] for summary in (single, double)]
    assert sqnr[0] == pytest.approx(sqnr[1], abs=0.5)  # of other sample rows


def test_squad_command(tmp_path, capsys):
    arguments = squad_demo(tmp_path)
    summary = evaluate_squad(
        [*arguments, "--modes", "fp32", "bf16", "static", "--alpha", "0.5", "auto", "-o", str(tmp_path / "out")]
    )
    kinds = [(mode["kind"], mode["alpha"]) for mode in summary["modes"]]
    assert kinds == [("fp32", None), ("bf16", None), ("static", 0.5), ("static", "auto")]
    assert summary["examples"] == 4 and all(mode["mean_group_sqnr_db"] > 25 for mode in summary["modes"][2:])
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == json.loads(json.dumps(summary))
    table = (tmp_path / "out" / "results.md").read_text()
    assert table in capsys.readouterr().out and table.count("| static |") == 2


def test_a_saved_checkpoint_is_evaluated_as_it_is(tmp_path):
    folder, *rest = squad_demo(tmp_path)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, quantization_config=SmoothQuantConfig())
    model.save_pretrained(tmp_path / "int8")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "int8")
    saved = evaluate_squad([str(tmp_path / "int8"), *rest, "-o", str(tmp_path / "saved")])
    fresh = evaluate_squad([folder, *rest, "--modes", "static", "-o", str(tmp_path / "fresh")])
    assert [mode["kind"] for mode in saved["modes"]] == ["saved"]
    assert saved["modes"][0]["metrics"] == fresh["modes"][0]["metrics"]


def test_wrong_combinations_say_what_to_do(mnli, tmp_path):
    name, _, data = mnli
    with pytest.raises(ValueError, match="float model: it isn't 'saved'"):
        evaluate_mnli([name, "--data", data, "--modes", "saved", "-o", str(tmp_path)])
    with pytest.raises(ValueError, match="is the evaluation data"):
        evaluate_mnli([name, "--data", data, "--calibration", data, "-o", str(tmp_path)])
    with pytest.raises(ValueError, match=r"wasn't trained for this task: qa_outputs\.bias"):
        evaluate_squad([name, *squad_demo(tmp_path)[1:], "-o", str(tmp_path)])
