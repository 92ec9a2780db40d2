import pytest
import torch
from torch import nn
from transformers import BertForMaskedLM, BertForQuestionAnswering, T5Config, T5EncoderModel

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.selection import matches, select_linears


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("layer.1", "encoder.layer.1.dense", True),
        ("layer.1", "encoder.layer.11.dense", False),
        ("dense", "encoder.layer.1.dense", True),
        ("dense", "encoder.layer.1.dense_out", False),
        ("re:layer\\.[01]\\.", "encoder.layer.1.dense", True),
        ("re:layer\\.[01]\\.", "encoder.layer.2.dense", False),
    ],
)
def test_matches(pattern, name, expected):
    assert matches(pattern, name) is expected


def test_encoder_linears_are_converted_and_the_head_is_not(tiny_config):
    selection = select_linears(BertForQuestionAnswering(tiny_config), SmoothQuantConfig())
    assert len(selection.convert) == 2 * 6
    assert selection.kept == {"qa_outputs": "fewer than 32 features"}


def test_head_on_request(tiny_config):
    selection = select_linears(BertForQuestionAnswering(tiny_config), SmoothQuantConfig(min_features=1))
    assert "qa_outputs" in selection.convert and not selection.kept


def test_exclusions_come_first_and_a_useless_pattern_warns(tiny_config, transformers_warnings):
    config = SmoothQuantConfig(modules_to_not_convert=["layer.0", "re:nothing_like_it"])
    selection = select_linears(BertForQuestionAnswering(tiny_config), config)
    assert all(name.startswith("bert.encoder.layer.1.") for name in selection.convert)
    assert selection.kept["bert.encoder.layer.0.output.dense"] == "excluded by 'layer.0'"
    assert "'re:nothing_like_it' matches no Linear" in transformers_warnings.text
    assert "'layer.0'" not in transformers_warnings.text


def test_tied_decoder_stays(tiny_config):
    selection = select_linears(BertForMaskedLM(tiny_config), SmoothQuantConfig())
    assert selection.kept == {"cls.predictions.decoder": "weight tied to another module"}
    assert "cls.predictions.transform.dense" in selection.convert


def test_untied_output_embedding_stays(tiny_config):
    model = BertForMaskedLM(type(tiny_config)(**tiny_config.to_dict() | {"tie_word_embeddings": False}))
    assert select_linears(model, SmoothQuantConfig()).kept == {"cls.predictions.decoder": "output embedding"}


def test_keep_in_fp32_modules():
    model = T5EncoderModel(T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=1, num_heads=4))
    kept = select_linears(model, SmoothQuantConfig()).kept
    assert kept == {"encoder.block.0.layer.1.DenseReluDense.wo": "kept in float32 by the model"}


def test_subclasses_of_linear_stay(tiny_config):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = BertForQuestionAnswering(tiny_config)
    model.bert.encoder.layer[0].output.dense = Doubled(128, 64)
    with torch.no_grad():
        kept = select_linears(model, SmoothQuantConfig()).kept
    assert kept["bert.encoder.layer.0.output.dense"] == "is a Doubled, not a plain nn.Linear"
