"""Where calibration samples come from: the built-in corpus, the hub, local files, objects of the user's."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

Text = str | tuple[str, str]

ACCEPTED = (
    "Accepted: None (the built-in corpus); a hub id, a local csv, tsv, json, jsonl, parquet or txt file, or a folder; "
    "a list of texts, of (text, text) pairs, of dicts, of PIL images or of arrays of audio; a datasets.Dataset; an "
    "iterable of batches (dicts of tensors, BatchEncodings, tensors of token ids, or tuples of tensors), e.g. a "
    "DataLoader."
)
BUILDERS = {".csv": "csv", ".tsv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
# Pairs that belong together, in the order a tokenizer takes them, where a table has more text columns than two.
PAIRS = (("question", "context"), ("premise", "hypothesis"), ("sentence1", "sentence2"), ("query", "passage"))
SINGLES = ("text", "content", "sentence")
SHUFFLE_BUFFER = 1000


def open_source(dataset: Any, kwargs: Mapping[str, Any], seed: int) -> tuple[str, Iterator[Any]]:
    """Opens the user's `dataset` and names it.

    Datasets of the `datasets` library are shuffled (a stream within a buffer of 1000), since many are sorted by topic;
    lists and other iterables keep their order.

    Args:
        dataset: what `SmoothQuantConfig(dataset=...)` was given.
        kwargs (`Mapping[str, Any]`): for `datasets.load_dataset`.
        seed (`int`): of the shuffling.

    Returns:
        The name for the checkpoint's record (no path, no content) and an iterator over the elements.

    Raises:
        `TypeError`: a kind that isn't accepted.
        `ValueError`: nothing can be loaded under this name; says what was tried.
    """
    if dataset is None:
        return "builtin", iter(builtin_corpus())
    name = type(dataset).__name__
    if isinstance(dataset, str | Path):
        name = Path(dataset).name if Path(dataset).exists() else str(dataset)
        dataset = _load(str(dataset), dict(kwargs))
    elif kwargs:
        raise ValueError("dataset_kwargs are for datasets.load_dataset: give them with a hub id, a file or a folder.")
    library = sys.modules.get("datasets")
    if library is not None and isinstance(dataset, library.DatasetDict | library.IterableDatasetDict):
        raise TypeError(
            f"SmoothQuantConfig(dataset=...) can't be a {type(dataset).__name__}: pass one of its splits "
            f"({', '.join(map(repr, dataset))}), e.g. dataset[{next(iter(dataset), 'train')!r}]."
        )
    if isinstance(dataset, bytes | Mapping) or not isinstance(dataset, Iterable):
        raise TypeError(f"SmoothQuantConfig(dataset=...) can't be a {name}. {ACCEPTED}")
    return name, iter(_elements(dataset, seed))


def builtin_corpus() -> list[Text]:
    """The corpus shipped with the package: prose, requests and (question, passage) pairs in several languages.

    Its order is such that the first N samples have the mix of the whole; see `corpus/README.md` for its origin.
    """
    path = resources.files(__package__) / "corpus" / "builtin.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row_text(record) for record in records]


def row_text(row: Mapping[str, Any], columns: list[str] | None = None) -> Text:
    """The text or pair of texts of a table's row: of the named columns, or found among its text columns.

    Raises:
        `ValueError`: a named column doesn't exist, or the text columns are ambiguous; lists them.
    """
    texts = [name for name, value in row.items() if isinstance(value, str)]
    if columns is None:
        candidates = [pair for pair in PAIRS if set(pair) <= set(texts)] + [(one,) for one in SINGLES if one in texts]
        columns = list(candidates[0]) if candidates else [name for name in texts if name != "lang"]
    missing = [name for name in columns if name not in texts]
    if missing or not 1 <= len(columns) <= 2:
        found = f"{', '.join(texts) or 'none'}{'; missing: ' + ', '.join(missing) if missing else ''}"
        raise ValueError(
            f"Can't tell which columns of the calibration dataset to use. Its text columns: {found}. Name one or two: "
            "SmoothQuantConfig(text_columns=[...])"
        )
    return row[columns[0]] if len(columns) == 1 else (row[columns[0]], row[columns[1]])


def _load(name: str, kwargs: dict[str, Any]) -> Iterable[Mapping[str, Any]]:
    import datasets

    path = Path(name)
    kwargs.setdefault("split", "train")
    try:
        if path.is_file():
            builder = BUILDERS.get(path.suffix.lower())
            if builder is None:
                raise ValueError(f"can't read files that end in {path.suffix!r}")
            if path.suffix.lower() == ".tsv":
                kwargs.setdefault("sep", "\t")
            return datasets.load_dataset(builder, data_files=name, **kwargs)
        if path.is_dir():
            if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
                loaded = datasets.load_from_disk(name)
                return loaded[kwargs["split"]] if isinstance(loaded, datasets.DatasetDict) else loaded
            return datasets.load_dataset(name, **kwargs)
        # A stream: a few hundred samples of a huge set are no reason to download all of it.
        return datasets.load_dataset(name, streaming=True, **kwargs)
    except Exception as error:  # each builder and the hub fail in their own ways
        raise ValueError(
            f"The calibration dataset {name!r} can't be loaded ({type(error).__name__}: {error}). {ACCEPTED} Settings "
            "of datasets.load_dataset (name, split, data_files, ...) go into SmoothQuantConfig(dataset_kwargs={...})."
        ) from error


def _elements(dataset: Any, seed: int) -> Iterable[Any]:
    """The elements of `dataset`, those of the `datasets` library in an order drawn from `seed`."""
    library = sys.modules.get("datasets")  # an object of it can't exist unless it was imported
    if library is not None and isinstance(dataset, library.Dataset):
        return dataset.shuffle(seed=seed)
    if library is not None and isinstance(dataset, library.IterableDataset):
        return dataset.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)
    if isinstance(dataset, torch.utils.data.Dataset) and not isinstance(dataset, torch.utils.data.IterableDataset):
        return (dataset[index] for index in range(len(dataset)))
    return dataset
