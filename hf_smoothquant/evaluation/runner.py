"""Runs the modes over the examples, in one process or several, and goes on where a run before was cut off."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from accelerate import PartialState
from transformers import AutoConfig, AutoTokenizer

from hf_smoothquant.evaluation.data import digest
from hf_smoothquant.evaluation.modes import Mode, build
from hf_smoothquant.progress import progress
from hf_smoothquant.report import quantization_report

CHUNK = 64  # examples that are answered, written and given to a process together


class Task(Protocol):
    """What a kind of evaluation brings (`SquadTask`, `NliTask`)."""

    name: str
    metrics: tuple[str, ...]
    model_class: type
    examples: list[dict[str, Any]]
    settings: dict[str, Any]

    def predict(self, model: Any, tokenizer: Any, examples: Sequence[dict[str, Any]]) -> list[str]: ...

    def scores(self, predictions: Sequence[str]) -> dict[str, np.ndarray]: ...

    def compute(self, predictions: Sequence[str]) -> tuple[dict[str, float], str]: ...

    def calibration(self, source: str) -> Any: ...


@dataclass
class Outcome:
    """What one mode answered.

    Attributes:
        mode (`Mode`): the variant.
        predictions (`list[str]`): one for each example, in order.
        seconds (`float`): spent in `predict`, all processes together.
        mean_sqnr_db (`float` or `None`): mean over the groups of Linears; `None` for float models.
        fallen_back (`int` or `None`): groups that aren't as the mode's activation says.
    """

    mode: Mode
    predictions: list[str]
    seconds: float
    mean_sqnr_db: float | None = None
    fallen_back: int | None = None


def run_mode(task: Task, mode: Mode, name: str, folder: Path, state: PartialState | None = None) -> Outcome:
    """Lets the model `name` in the variant `mode` answer all examples.

    Answers are written in chunks of 64 examples to `folder`, under a digest of everything they depend on. A chunk
    that is there isn't computed again. The chunks are the same however many processes share them, so are the answers.

    Args:
        task (`Task`): examples and how to answer them.
        mode (`Mode`): the variant.
        name (`str`): folder or hub id of the model.
        folder (`Path`): seen by all processes.
        state (`PartialState`, *optional*): of accelerate: which process this is.
    """
    state = state or PartialState(cpu=True)
    chunks = [task.examples[first : first + CHUNK] for first in range(0, len(task.examples), CHUNK)]
    key = digest([task.name, task.settings, mode.to_dict(), fingerprint(name), digest(task.examples), CHUNK])
    folder.mkdir(parents=True, exist_ok=True)
    done = _read(folder, key)
    state.wait_for_everyone()  # nobody writes before all have read: they share the rest by what they have read
    rest = [index for index in range(len(chunks)) if index not in done]
    if rest:
        model, call = build(mode, task.model_class, name, task.calibration)
        if state.is_main_process:
            (folder / f"{key}.model.json").write_text(json.dumps(_summary(model, mode)))
        tokenizer = AutoTokenizer.from_pretrained(name)
        mine = rest[state.process_index :: state.num_processes]
        with (folder / f"{key}.{state.process_index}.jsonl").open("a", encoding="utf-8") as file:
            for index in progress(mine, describe(mode), "chunk", len(mine), hidden=not state.is_main_process):
                start = time.perf_counter()
                predictions = task.predict(call, tokenizer, chunks[index])
                seconds = time.perf_counter() - start
                # A line of its own in front: one that a killed run left half-written stays apart.
                file.write("\n" + json.dumps({"chunk": index, "seconds": seconds, "predictions": predictions}))
                file.flush()
        state.wait_for_everyone()
        done = _read(folder, key)
    summary = json.loads((folder / f"{key}.model.json").read_text())
    return Outcome(
        mode,
        [text for index in range(len(chunks)) for text in done[index]["predictions"]],
        sum(chunk["seconds"] for chunk in done.values()),
        **summary,
    )


def fingerprint(name: str) -> Any:
    """What tells one model from another of the same name: the hub's commit, or sizes and times of a folder's files."""
    path = Path(name)
    if not path.is_dir():
        return [name, AutoConfig.from_pretrained(name)._commit_hash]
    return [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(path.glob("*.*"))]


def describe(mode: Mode) -> str:
    """A few words for a progress bar."""
    parts = [mode.kind, mode.alpha, mode.calibration and Path(mode.calibration).name, mode.min_sqnr_db]
    return " ".join(str(part) for part in parts if part is not None)


def _summary(model: Any, mode: Mode) -> dict[str, Any]:
    if not mode.quantizes:
        return {}
    report = quantization_report(model)
    fallen_back = sum(group.activation != mode.kind for group in report.groups)
    in_float = sum("fallback" in reason for reason in report.kept.values())
    return {"mean_sqnr_db": report.mean_sqnr_db, "fallen_back": fallen_back + in_float}


def _read(folder: Path, key: str) -> dict[int, dict[str, Any]]:
    """The chunks that are complete, whichever process wrote them."""
    done = {}
    for file in folder.glob(f"{key}.*.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # empty, or cut off in the middle
            done[record["chunk"]] = record
    return done
