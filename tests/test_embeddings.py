import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from hf_smoothquant.evaluation.embeddings import agreement, embed


def test_padding_and_order_change_nothing(minilm):
    model, tokenizer = AutoModel.from_pretrained(minilm).eval(), AutoTokenizer.from_pretrained(minilm)
    texts = ["ok", "a much longer text about nothing in particular", "The bridge was built by masons."]
    together = embed(model, tokenizer, texts, batch_size=2)
    alone = torch.cat([embed(model, tokenizer, [text]) for text in texts])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(together.norm(dim=1), torch.ones(3))


def test_agreement_of_hand_made_embeddings():
    """In the plane, at 0, 10, 30 and 70 degrees: all differences distinct. Turning all keeps every similarity."""

    def at(*degrees):
        angles = torch.tensor(degrees).deg2rad()
        return torch.stack([angles.cos(), angles.sin()], 1)

    reference = at(0.0, 10, 30, 70)
    same = agreement(reference, reference)
    assert same == pytest.approx({"mean_cosine": 1, "min_cosine": 1, "spearman": 1}, abs=1e-6)
    turned = agreement(reference, at(60.0, 70, 90, 130))
    assert turned == pytest.approx({"mean_cosine": 0.5, "min_cosine": 0.5, "spearman": 1}, abs=1e-6)
    # differences 10 20 30 40 60 70 of the reference become 10 45 35 40 75 30 (in the pairs' order below)
    moved = agreement(reference, at(0.0, 10, 55, 85))
    # pairs (0,1) (0,2) (0,3) (1,2) (1,3) (2,3): reference 10 30 70 20 60 40, moved 10 55 85 45 75 30
    # ranks 1 3 6 2 5 4 and 1 4 6 3 5 2: sum of squared differences 6, rho = 1 - 6 * 6 / (6 * 35)
    assert moved["spearman"] == pytest.approx(1 - 36 / 210)
