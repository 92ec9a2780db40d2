import copy

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, BertModel

from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.smoothing.sensitivity import Sensitivity, noise_to_db

IDS = torch.arange(5, 25).reshape(2, 10)
NAME = "bert.encoder.layer.0.output.dense"


def test_noise_is_that_of_the_model_with_the_int8_weight_in_it(tiny_bert):
    floats = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    module = floats.get_submodule(NAME)
    int8 = quantize_weight(module.weight.detach(), None, torch.tensor(0.1))
    converted = copy.deepcopy(floats)
    Int8Linear.adopt(converted.get_submodule(NAME)).weight = torch.nn.Parameter(int8, requires_grad=False)
    with torch.no_grad():
        y, y_int8 = floats(IDS), converted(IDS)
        noise = Sensitivity(floats, [{"input_ids": ids[None]} for ids in IDS]).noise({module: int8})
    ratios = [
        ((y[key] - y_int8[key]).square().sum() / y[key].square().sum()).item() for key in ("start_logits", "end_logits")
    ]
    assert noise == pytest.approx(sum(ratios) / 2, rel=1e-4) and noise > 1e-5
    with torch.no_grad():
        assert torch.equal(floats(IDS).start_logits, y.start_logits)  # no hook is left


def test_padded_positions_do_not_count(tiny_config):
    model = BertModel(tiny_config, add_pooling_layer=False).eval()
    module = model.encoder.layer[0].output.dense
    int8 = quantize_weight(module.weight.detach(), None, torch.tensor(0.1))
    mask = torch.ones(1, 10, dtype=torch.int64)
    mask[:, 6:] = 0
    with torch.no_grad():
        alone = Sensitivity(model, [{"input_ids": IDS[:1, :6]}]).noise({module: int8})
        padded = Sensitivity(model, [{"input_ids": IDS[:1], "attention_mask": mask}]).noise({module: int8})
    assert padded == pytest.approx(alone, rel=1e-3)


def test_noise_to_db():
    assert noise_to_db(0.01) == pytest.approx(20) and noise_to_db(0.0) == 200
