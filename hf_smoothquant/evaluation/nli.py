"""MNLI and data of its form: does the premise entail the hypothesis?"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification

from hf_smoothquant.evaluation.batching import logits_of
from hf_smoothquant.evaluation.data import load_table, pick_columns, sample
from hf_smoothquant.evaluation.metrics import load_metric

LABELS = ("entailment", "neutral", "contradiction")
COLUMNS = {
    "premise": ("premise", "sentence1"),
    "hypothesis": ("hypothesis", "sentence2"),
    "label": ("gold_label", "label"),
}


class NliTask:
    """Pairs of sentences, and how a model's judgement of them is read and scored.

    Args:
        examples (`list[dict]`): `premise`, `hypothesis`, `label` (a name of `LABELS`).
        labels (`Sequence[str]`, *optional*): names of the model's classes in order, for checkpoints that don't name
            them.
        max_length, batch_size (`int`): tokens at which pairs are cut; pairs in a batch.
    """

    name = "mnli"
    metrics = ("accuracy",)
    model_class = AutoModelForSequenceClassification

    def __init__(
        self,
        examples: list[dict[str, str]],
        labels: Sequence[str] | None = None,
        max_length: int = 128,
        batch_size: int = 32,
    ):
        self.examples = examples
        self.labels = labels
        self.settings = {"max_length": max_length, "batch_size": batch_size, "labels": labels and list(labels)}

    @classmethod
    def load(
        cls,
        source: str = "nyu-mll/multi_nli",
        split: str = "validation_matched",
        count: int | None = None,
        **settings,
    ) -> "NliTask":
        """Reads a hub dataset or a csv, tsv, jsonl, json or parquet file. Rows without a gold label are left out.

        Raises:
            `ValueError`: unreadable data, missing columns, unknown labels.
        """
        return cls(sample(read_nli(source, split), count), **settings)

    def predict(self, model: Callable, tokenizer: Any, examples: Sequence[dict[str, str]]) -> list[str]:
        """The name of the label that the model gives each of `examples`."""
        names = label_names(model.config, self.labels)
        encoded = tokenizer(
            [example["premise"] for example in examples],
            [example["hypothesis"] for example in examples],
            truncation=True,
            max_length=self.settings["max_length"],
        )
        inputs = [
            {name: encoded[name][index] for name in encoded if name in tokenizer.model_input_names}
            for index in range(len(examples))
        ]
        logits = logits_of(model, tokenizer, inputs, ("logits",), self.settings["batch_size"])
        return [names[int(row.argmax())] for (row,) in logits]

    def scores(self, predictions: Sequence[str]) -> dict[str, np.ndarray]:
        """100 for each right answer, else 0."""
        gold = np.array([example["label"] for example in self.examples])
        return {"accuracy": 100.0 * (np.array(predictions) == gold)}

    def compute(self, predictions: Sequence[str]) -> tuple[dict[str, float], str]:
        """The metric through `evaluate`, in percent, and where it came from."""
        metric, origin = load_metric("accuracy")
        values = metric.compute(
            predictions=[LABELS.index(name) for name in predictions],
            references=[LABELS.index(example["label"]) for example in self.examples],
        )
        return {"accuracy": 100 * float(values["accuracy"])}, origin

    def calibration(self, source: str) -> Any:
        """What `SmoothQuantConfig(dataset=...)` takes: pairs of a local table; a hub id as it is."""
        from pathlib import Path

        if source == "builtin" or not Path(source).is_file():
            return None if source == "builtin" else source
        table = load_table(source)
        names = pick_columns(table.column_names, {need: COLUMNS[need] for need in ("premise", "hypothesis")}, source)
        order = np.random.default_rng(0).permutation(len(table))
        return [(table[int(i)][names["premise"]], table[int(i)][names["hypothesis"]]) for i in order[:4096]]


def label_names(config: Any, labels: Sequence[str] | None = None) -> list[str]:
    """The model's classes in their order, as names of `LABELS`: checkpoints of MNLI don't agree on it.

    Raises:
        `ValueError`: the config doesn't name the three classes; shows what it has and how to say it.
    """
    found = list(labels) if labels else [config.id2label[index] for index in sorted(config.id2label)]
    names = [name.strip().lower() for name in found]
    if sorted(names) != sorted(LABELS):
        raise ValueError(
            f"Can't tell which class is which: the model's are {', '.join(found)}. Name them in the model's order, "
            f"e.g. --labels {' '.join(LABELS)}"
        )
    return names


def read_nli(source: str, split: str = "validation_matched") -> list[dict[str, str]]:
    """The labelled pairs of `source` as dicts of `premise`, `hypothesis` and `label`."""
    table = load_table(source, split=split)
    names = pick_columns(table.column_names, COLUMNS, source)
    kind = table.features[names["label"]]
    known = [name.lower() for name in getattr(kind, "names", None) or ()]
    examples = []
    for row in table:
        label = row[names["label"]]
        if isinstance(label, int) and known:
            label = known[label] if 0 <= label < len(known) else "-"
        label = "-" if label in (None, "") else str(label).strip().lower()
        if label in ("-", "-1"):
            continue  # annotators didn't agree
        if label not in LABELS:
            raise ValueError(
                f"{source} has the label {row[names['label']]!r} in the column {names['label']!r}. Needed: "
                f"{', '.join(LABELS)} (numbers don't say which is which), or - where there is none."
            )
        examples.append({"premise": row[names["premise"]], "hypothesis": row[names["hypothesis"]], "label": label})
    if not examples:
        raise ValueError(f"{source} has no labelled pairs.")
    return examples
