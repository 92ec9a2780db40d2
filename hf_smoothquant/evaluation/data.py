"""Evaluation data: tables of the hub or of local files, as rows."""

import csv
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BUILDERS = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}


def load_table(source: str, name: str | None = None, split: str = "validation") -> Any:
    """The rows of a hub dataset or a local file.

    Args:
        source (`str`): hub id, or a csv, tsv, txt (tab-separated), json, jsonl or parquet file.
        name (`str`, *optional*): the dataset's configuration on the hub.
        split (`str`, *optional*, defaults to `"validation"`): the split on the hub; a file is one split.

    Returns:
        `datasets.Dataset`.

    Raises:
        `ValueError`: the file doesn't exist or can't be read, or the hub can't be reached; says what to do.
    """
    import datasets

    path = Path(source)
    try:
        if path.is_file():
            if path.suffix.lower() not in BUILDERS:
                raise ValueError(f"its name must end in one of {', '.join(BUILDERS)}")
            builder, options = BUILDERS[path.suffix.lower()], {}
            if path.suffix.lower() in (".tsv", ".txt"):  # GLUE's files have quotation marks in them that quote nothing
                options = {"sep": "\t", "quoting": csv.QUOTE_NONE, "on_bad_lines": "error", "keep_default_na": False}
            elif builder == "csv":
                options = {"keep_default_na": False}  # "null" and "None" are words here
            return datasets.load_dataset(builder, data_files=str(path), split="train", **options)
        return datasets.load_dataset(source, name, split=split)
    except Exception as error:  # each builder and the hub fail in their own ways
        raise ValueError(
            f"The evaluation data {source!r} can't be loaded ({type(error).__name__}: {error}). Give a hub id that can "
            "be reached, or a local csv, tsv, json, jsonl or parquet file."
        ) from error


def pick_columns(available: Iterable[str], wanted: dict[str, tuple[str, ...]], source: str) -> dict[str, str]:
    """Which column of a table holds what, by the usual names.

    Args:
        available (`Iterable[str]`): the table's columns.
        wanted (`dict[str, tuple[str, ...]]`): for each need the names it goes by, the first found is taken.
        source (`str`): the table, for the message.

    Raises:
        `ValueError`: a need has no column; lists the names looked for.
    """
    available = list(available)
    found = {}
    for need, names in wanted.items():
        column = next((name for name in names if name in available), None)
        if column is None:
            raise ValueError(
                f"{source} has no column for the {need} ({' or '.join(names)}). Its columns: {', '.join(available)}."
            )
        found[need] = column
    return found


def sample(rows: list, count: int | None, seed: int = 0) -> list:
    """All rows, or `count` of them drawn without replacement and kept in order."""
    if count is None or count >= len(rows):
        return rows
    import numpy as np

    return [rows[index] for index in sorted(np.random.default_rng(seed).choice(len(rows), count, replace=False))]


def digest(value: Any) -> str:
    """Twelve hexadecimal digits that stand for a JSON-like value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:12]
