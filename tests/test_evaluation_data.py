import json

import pytest

pytest.importorskip("evaluate")

from hf_smoothquant.evaluation.data import sample
from hf_smoothquant.evaluation.nli import label_names, read_nli
from hf_smoothquant.evaluation.squad import read_squad

ROWS = [
    {"premise": 'He said "no" twice.', "hypothesis": "null", "label": "neutral"},
    {"premise": "It rains.", "hypothesis": "None of it.", "label": "contradiction"},
]
QUESTION = {"id": "7", "question": "Who?", "context": "Ann did.", "answers": ["Ann", "Ann did"]}
STORED = {"text": ["Ann", "Ann did"], "answer_start": [0, 0]}


def write_nli(folder, suffix):
    file = folder / f"nli{suffix}"
    if suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, ROWS)))
    elif suffix == ".parquet":
        datasets = pytest.importorskip("datasets")
        datasets.Dataset.from_list(ROWS).to_parquet(file)
    elif suffix == ".csv":
        lines = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in ROWS]
        file.write_text("\n".join(["premise,hypothesis,label", *lines]))
    else:  # the original's names of columns, and a row on which annotators didn't agree
        rows = [(row["premise"], row["hypothesis"], row["label"]) for row in ROWS] + [("a", "b", "-")]
        file.write_text("\n".join(map("\t".join, [("sentence1", "sentence2", "gold_label"), *rows])))
    return str(file)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", ".tsv", ".txt"])
def test_nli_files(tmp_path, suffix):
    """Quotation marks, and words that pandas takes for missing values, come through."""
    assert read_nli(write_nli(tmp_path, suffix)) == ROWS


def test_numbered_labels_need_names(tmp_path):
    file = tmp_path / "numbers.jsonl"
    file.write_text(json.dumps({"premise": "a", "hypothesis": "b", "label": 1}))
    with pytest.raises(ValueError, match=r"label 1 in the column 'label'.*numbers don't say"):
        read_nli(str(file))


def test_named_class_labels(tmp_path):
    """As on the hub: numbers with names, -1 where annotators didn't agree."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        premise=datasets.Value("string"),
        hypothesis=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
    )
    rows = {"premise": ["a", "b", "c"], "hypothesis": ["d", "e", "f"], "label": [2, -1, 0]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "named.parquet")
    labels = [row["label"] for row in read_nli(str(tmp_path / "named.parquet"))]
    assert labels == ["contradiction", "entailment"]


class Config:
    def __init__(self, *names):
        self.id2label = dict(enumerate(names))


def test_labels_are_mapped_by_name():
    assert label_names(Config("CONTRADICTION", "Neutral", "entailment")) == ["contradiction", "neutral", "entailment"]
    with pytest.raises(ValueError, match=r"LABEL_0, LABEL_1, LABEL_2.*--labels entailment"):
        label_names(Config("LABEL_0", "LABEL_1", "LABEL_2"))
    given = ["neutral", "entailment", "contradiction"]
    assert label_names(Config("LABEL_0", "LABEL_1", "LABEL_2"), given) == given


def write_squad(folder, suffix):
    file = folder / f"squad{suffix}"
    row = {**QUESTION, "answers": STORED}
    if suffix == ".json":
        answers = [{"text": text, "answer_start": 0} for text in QUESTION["answers"]]
        qas = [{"id": "7", "question": "Who?", "answers": answers}]
        file.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "Ann did.", "qas": qas}]}]}))
    elif suffix == ".jsonl":
        file.write_text(json.dumps(row))
    else:
        pytest.importorskip("datasets").Dataset.from_list([row]).to_parquet(file)
    return str(file)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_squad_files(tmp_path, suffix):
    assert read_squad(write_squad(tmp_path, suffix)) == [QUESTION]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{**QUESTION, "answers": []}], "1 questions without an answer.*SQuAD 1.1"),
        ([QUESTION, QUESTION], "whose id another one has"),
        ([{"id": "1", "text": "x"}], "no column for the question.*id, text"),
    ],
)
def test_unusable_questions(tmp_path, rows, message):
    file = tmp_path / "bad.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ValueError, match=message):
        read_squad(str(file))


def test_a_missing_file_says_what_to_give():
    with pytest.raises(ValueError, match=r"'missing.tsv' can't be loaded.*hub id.*tsv"):
        read_nli("missing.tsv")


def test_samples_are_drawn_once_and_in_order():
    rows = list(range(100))
    chosen = sample(rows, 10)
    assert chosen == sample(rows, 10) == sorted(set(chosen)) and len(chosen) == 10 and chosen != rows[:10]
    assert sample(rows, None) is rows
