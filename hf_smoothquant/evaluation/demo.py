"""A tiny model and a few examples made on the spot: they show that a script works, not how accurate anything is."""

import json
import string
from pathlib import Path

import torch
from transformers import BertConfig, BertForQuestionAnswering, BertForSequenceClassification, BertTokenizerFast

from hf_smoothquant.evaluation.nli import LABELS

FACTS = [
    ("Who built the bridge?", "The bridge was built by masons from the north.", "masons from the north"),
    ("What did the market sell?", "The market by the river sold bread, salt and copper wire.", "bread"),
    ("When did the ship leave?", "Before dawn the ship left the harbour for the islands.", "Before dawn"),
    ("Where is the library?", "The library stands behind the old town hall.", "behind the old town hall"),
]


def squad_demo(folder: Path) -> list[str]:
    """Writes a BERT of two layers and four questions; returns the arguments for `evaluate_squad`."""
    _write_model(folder / "tiny-bert-squad", BertForQuestionAnswering)
    questions = [
        {
            "title": str(index),
            "paragraphs": [
                {
                    "context": context,
                    "qas": [
                        {
                            "id": str(index),
                            "question": question,
                            "answers": [{"text": answer, "answer_start": context.index(answer)}],
                        }
                    ],
                }
            ],
        }
        for index, (question, context, answer) in enumerate(FACTS)
    ]
    (folder / "demo.json").write_text(json.dumps({"version": "1.1", "data": questions}))
    return [str(folder / "tiny-bert-squad"), "--data", str(folder / "demo.json"), "--stride", "32"]


def mnli_demo(folder: Path) -> list[str]:
    """Writes a BERT of two layers and twelve pairs; returns the arguments for `evaluate_mnli`."""
    _write_model(
        folder / "tiny-bert-mnli",
        BertForSequenceClassification,
        id2label=dict(enumerate(LABELS)),
        label2id={name: index for index, name in enumerate(LABELS)},
    )
    rows = [
        {"premise": context, "hypothesis": hypothesis, "label": label}
        for question, context, answer in FACTS
        for hypothesis, label in ((answer, LABELS[0]), (question, LABELS[1]), ("Nothing happened.", LABELS[2]))
    ]
    (folder / "demo.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [str(folder / "tiny-bert-mnli"), "--data", str(folder / "demo.jsonl")]


def _write_model(folder: Path, model_class: type, **config) -> None:
    letters = string.ascii_lowercase
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        *"?.,",
    ]
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=384).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = model_class(
        BertConfig(vocab_size=len(vocabulary), max_position_embeddings=384, initializer_range=0.2, **sizes, **config)
    )
    model.save_pretrained(folder)
