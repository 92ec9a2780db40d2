"""SQuAD 1.1 and data of its form: answers that are spans of a context."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForQuestionAnswering

from hf_smoothquant.evaluation.batching import logits_of
from hf_smoothquant.evaluation.data import load_table, pick_columns, sample
from hf_smoothquant.evaluation.metrics import exact_match, f1, load_metric
from hf_smoothquant.evaluation.spans import best_answer, make_features

COLUMNS = {"question": ("question",), "context": ("context",), "answers": ("answers", "answer")}


class SquadTask:
    """Questions, and how a model's answers to them are found and scored.

    Args:
        examples (`list[dict]`): `id`, `question`, `context`, `answers` (texts, at least one).
        max_length, stride, n_best, max_answer_length, batch_size (`int`): see `make_features`, `best_answer`.
    """

    name = "squad"
    metrics = ("exact_match", "f1")
    model_class = AutoModelForQuestionAnswering

    def __init__(
        self,
        examples: list[dict[str, Any]],
        max_length: int = 384,
        stride: int = 128,
        n_best: int = 20,
        max_answer_length: int = 30,
        batch_size: int = 16,
    ):
        self.examples = examples
        self.settings = {
            "max_length": max_length,
            "stride": stride,
            "n_best": n_best,
            "max_answer_length": max_answer_length,
            "batch_size": batch_size,
        }

    @classmethod
    def load(
        cls, source: str = "rajpurkar/squad", split: str = "validation", count: int | None = None, **settings
    ) -> "SquadTask":
        """Reads a hub dataset, SQuAD's own JSON, or a table with the columns id, question, context and answers.

        Raises:
            `ValueError`: unreadable data, missing columns, questions without an answer (SQuAD 2.0).
        """
        return cls(sample(read_squad(source, split), count), **settings)

    def predict(self, model: Callable, tokenizer: Any, examples: Sequence[dict[str, Any]]) -> list[str]:
        """The answer to each of `examples`."""
        settings = self.settings
        features = make_features(
            tokenizer,
            [example["question"] for example in examples],
            [example["context"] for example in examples],
            settings["max_length"],
            settings["stride"],
        )
        logits = logits_of(
            model, tokenizer, [f.inputs for f in features], ("start_logits", "end_logits"), settings["batch_size"]
        )
        windows: list[list[int]] = [[] for _ in examples]
        for index, feature in enumerate(features):
            windows[feature.example].append(index)
        return [
            best_answer(
                example["context"],
                [features[index] for index in chosen],
                [_unpadded(logits[index][0], features[index], tokenizer) for index in chosen],
                [_unpadded(logits[index][1], features[index], tokenizer) for index in chosen],
                settings["n_best"],
                settings["max_answer_length"],
            ).text
            for example, chosen in zip(examples, windows, strict=True)
        ]

    def scores(self, predictions: Sequence[str]) -> dict[str, np.ndarray]:
        """Exact match and F1 of each example in percent, over the best of its answers."""
        return {
            name: np.array(
                [
                    100 * max(score(text, answer) for answer in example["answers"])
                    for text, example in zip(predictions, self.examples, strict=True)
                ]
            )
            for name, score in (("exact_match", exact_match), ("f1", f1))
        }

    def compute(self, predictions: Sequence[str]) -> tuple[dict[str, float], str]:
        """The metric through `evaluate`, in percent, and where it came from."""
        metric, origin = load_metric("squad")
        values = metric.compute(
            predictions=[
                {"id": example["id"], "prediction_text": text}
                for text, example in zip(predictions, self.examples, strict=True)
            ],
            references=[
                {
                    "id": example["id"],
                    "answers": {"text": example["answers"], "answer_start": [0] * len(example["answers"])},
                }
                for example in self.examples
            ],
        )
        return {name: float(values[name]) for name in self.metrics}, origin

    def calibration(self, source: str) -> Any:
        """(question, context) pairs of a SQuAD file; whatever else `SmoothQuantConfig(dataset=...)` takes as it is."""
        if source == "builtin":
            return None
        if Path(source).suffix.lower() == ".json" and Path(source).is_file():
            examples = read_squad(source)
            order = np.random.default_rng(0).permutation(len(examples))
            return [(examples[index]["question"], examples[index]["context"]) for index in order]
        return source


def read_squad(source: str, split: str = "validation") -> list[dict[str, Any]]:
    """The questions of `source` as dicts of `id`, `question`, `context` and `answers` (`list[str]`)."""
    path = Path(source)
    examples = _read_nested(path) if path.is_file() and path.suffix.lower() == ".json" else None
    if examples is None:
        table = load_table(source, split=split)
        names = pick_columns(table.column_names, COLUMNS, source)
        examples = [
            {
                "id": str(row.get("id", index)),
                "question": row[names["question"]],
                "context": row[names["context"]],
                "answers": _texts(row[names["answers"]]),
            }
            for index, row in enumerate(table)
        ]
    if not examples:
        raise ValueError(f"{source} has no questions.")
    without = [example["id"] for example in examples if not example["answers"]]
    if without:
        raise ValueError(
            f"{source} has {len(without)} questions without an answer (the first: {without[0]}). This is SQuAD 1.1's "
            "evaluation, where each has one; leave them out."
        )
    ids = {example["id"] for example in examples}
    if len(ids) != len(examples):
        raise ValueError(f"{source} has {len(examples) - len(ids)} questions whose id another one has, too.")
    return examples


def _read_nested(path: Path) -> list[dict[str, Any]] | None:
    """SQuAD's own format; `None` if the file is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None  # one JSON object per line
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not all("paragraphs" in article for article in articles):
        return None
    return [
        {
            "id": str(question["id"]),
            "question": question["question"],
            "context": paragraph["context"],
            "answers": [answer["text"] for answer in question["answers"]],
        }
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def _texts(answers: Any) -> list[str]:
    """The answers' texts, whether a column holds SQuAD's dict, a list, one text, or JSON of these (in csv files)."""
    if isinstance(answers, str) and answers[:1] in ("{", "["):
        try:
            answers = json.loads(answers)
        except ValueError:
            return [answers]
    if isinstance(answers, dict):
        answers = answers["text"]
    return [answers] if isinstance(answers, str) else [a["text"] if isinstance(a, dict) else a for a in answers]


def _unpadded(row: np.ndarray, feature: Any, tokenizer: Any) -> np.ndarray:
    """The logits of a feature's own tokens, whichever side was padded."""
    tokens = len(feature.offsets)
    return row[-tokens:] if tokenizer.padding_side == "left" else row[:tokens]
