"""Compiles are slow: few of them, on tiny models, each checked for several things."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from conftest import IDS, TEXTS, logits, sqnr_db
from torch._inductor import config as inductor_config
from transformers import AutoModelForQuestionAnswering, BertForQuestionAnswering

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu
from hf_smoothquant.inductor.coverage import FusionCoverage
from hf_smoothquant.linear import Int8Linear


def load(folder, dtype=torch.float32, **arguments):
    config = SmoothQuantConfig(dataset=TEXTS, **arguments)
    return AutoModelForQuestionAnswering.from_pretrained(folder, dtype=dtype, quantization_config=config)


def fused(count):
    return 0 if cpu.SATURATES else count


@pytest.mark.parametrize(
    ("activation", "dtype", "autocast", "min_sqnr_db"),
    [
        ("static", torch.float32, None, 60),
        ("static", torch.float32, torch.bfloat16, 20),
        ("static", torch.bfloat16, None, 20),
        ("dynamic", torch.float32, None, 25),  # the largest value of each token lies on a rounding tie
        ("dynamic", torch.bfloat16, None, 20),
    ],
)
def test_compiled_equals_eager_and_every_linear_is_fused(tiny_bert, activation, dtype, autocast, min_sqnr_db):
    settings = inductor_config.get_config_copy()
    # min_features=1: the head, [2, 64], has to compile too.
    model = load(tiny_bert, dtype, activation=activation, min_features=1)
    linears = [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]
    compiled = hf_smoothquant.compile(model, autocast=autocast)
    assert type(compiled) is BertForQuestionAnswering
    assert sqnr_db(logits(model), logits(compiled)) > min_sqnr_db
    assert compiled.fusion_coverage.fused == fused(len(linears)) and len(linears) == 13
    assert compiled.fusion_coverage.unfused == []
    assert inductor_config.get_config_copy() == settings
    assert model._compiled_call_impl is None
    for clone in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(logits(clone), logits(model))  # a copy is eager again


def test_other_lengths_stay_right_and_fused(tiny_bert):
    model = load(tiny_bert)
    compiled = hf_smoothquant.compile(model)
    for length in (10, 23, 1, 57):
        ids = torch.randint(5, 64, (1, length))
        assert sqnr_db(logits(model, ids), logits(compiled, ids)) > 40
    assert compiled.fusion_coverage.unfused == []


def test_gradients_of_the_caller_do_not_matter(tiny_bert):
    compiled = hf_smoothquant.compile(load(tiny_bert))
    output = compiled(IDS)
    assert torch.is_grad_enabled() and not output.start_logits.requires_grad
    assert compiled.fusion_coverage.fused == fused(12)


def test_unfused_linears_are_named(transformers_warnings):
    """The graph a failed fusion leaves: the product as an operation of its own."""
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    product = graph.call_function(torch.ops.aten._int_mm.default, (a, b))
    product.meta["nn_module_stack"] = {
        "1": ("L['self'].bert", object),
        "2": ("L['self'].bert.encoder.layer._modules['0'].dense", Int8Linear),
    }
    graph.output(product)
    coverage = FusionCoverage()
    coverage.inspect(graph)
    assert coverage.unfused == ["bert.encoder.layer.0.dense"] and coverage.fused == 0
    assert "1 quantized Linears did not become a fused int8 kernel" in transformers_warnings.text


@pytest.mark.skipif(cpu.SATURATES, reason="no VNNI: nothing is fused, by intention")
def test_linears_really_left_unfused_are_named(tiny_bert, monkeypatch, transformers_warnings):
    """Without the fusion patterns of the freezing passes every Linear is unfused, and the user hears of it."""
    monkeypatch.setattr("torch._inductor.freezing.freezing_passes", lambda *args: None)
    model = load(tiny_bert)
    compiled = hf_smoothquant.compile(model, options={"force_disable_caches": True})
    assert sqnr_db(logits(model), logits(compiled)) > 40
    linears = {name for name, module in model.named_modules() if isinstance(module, Int8Linear)}
    assert set(compiled.fusion_coverage.unfused) == linears
    assert "bert.encoder.layer.1.output.dense" in transformers_warnings.text


def test_refusals(tiny_bert):
    floats = AutoModelForQuestionAnswering.from_pretrained(tiny_bert)
    with pytest.raises(ValueError, match="has no int8 Linear"):
        hf_smoothquant.compile(floats)
    model = load(tiny_bert)
    with pytest.raises(ValueError, match="nonsense"):
        hf_smoothquant.compile(model, options={"nonsense": 1})
    with pytest.raises(ValueError, match=r"model\.eval"):
        hf_smoothquant.compile(model.train())


def test_registering_the_fusions_changes_no_global_option():
    from hf_smoothquant.inductor.fusions import register_fusions

    register_fusions()
    assert inductor_config.pre_grad_custom_pass is None
    assert SimpleNamespace(**inductor_config.get_config_copy()).freezing is False
