"""The perplexity example on a tiny model."""

import sys
from pathlib import Path

import pytest
import torch
from conftest import TEXTS, write_tokenizer
from test_decoders import DECODERS

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from perplexity import main


def test_perplexity(tmp_path, capsys):
    """Two windows: the exponential of the model's own mean loss over both; int8 is close."""
    model = DECODERS["Llama"].build()
    model.save_pretrained(tmp_path / "model")
    tokenizer = write_tokenizer(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text(" ".join(TEXTS))
    results = main([str(tmp_path / "model"), str(text), "--windows", "2", "--length", "64"])
    ids = torch.tensor(tokenizer(text.read_text()).input_ids[:128]).reshape(2, 64)
    with torch.no_grad():
        expected = model(ids, labels=ids).loss.exp().item()
    assert results["fp32"] == pytest.approx(expected, rel=1e-4)
    assert results["int8 static"] == pytest.approx(expected, rel=0.1)
    assert results["int8 dynamic"] == pytest.approx(expected, rel=0.1)
    assert "int8 dynamic" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main([str(tmp_path / "model"), str(text), "--length", "5000"])
