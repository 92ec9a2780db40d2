"""GPT-2, whose Linears are `Conv1D`s: the weight is stored transposed, `[K, N]`."""

import copy

import pytest
import torch
from conftest import sqnr_db
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2ForSequenceClassification, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu, quantization_report
from hf_smoothquant.conv1d import conv1d_as_linear
from hf_smoothquant.conversion import dequantize_model, quantize_model
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.selection import select_linears

IDS = torch.arange(5, 25).reshape(2, 10)
LAYER = {"attn.c_attn": (192, 64), "attn.c_proj": (64, 64), "mlp.c_fc": (256, 64), "mlp.c_proj": (64, 256)}
NAMES = {f"transformer.h.{layer}.{name}": shape for layer in range(2) for name, shape in LAYER.items()}


def gpt2(model_class=GPT2LMHeadModel):
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 130}
    ids = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    return model_class(GPT2Config(initializer_range=0.1, num_labels=3, **sizes, **ids)).eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits


def quantized(folder, model_class=GPT2LMHeadModel, **arguments):
    config = SmoothQuantConfig(dataset=[IDS], **arguments)
    return model_class.from_pretrained(folder, quantization_config=config, dtype="auto")


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_class", [GPT2LMHeadModel, GPT2ForSequenceClassification])
def test_quantize_save_reload_dequantize(save_tiny, tmp_path, model_class, dtype, activation):
    floats = gpt2(model_class)
    folder = save_tiny(copy.deepcopy(floats), dtype)
    model = quantized(folder, model_class, activation=activation)
    weights = {name: module.weight for name, module in model.named_modules() if isinstance(module, Int8Linear)}
    assert {name: weight.shape for name, weight in weights.items()} == NAMES
    assert sqnr_db(logits(floats), logits(model)) > 28
    report = quantization_report(model)
    assert [name for group in report.groups for name in group.names] == list(NAMES)
    assert min(group.sqnr_db for group in report.groups) > 35
    assert list(report.kept) == ["lm_head" if model_class is GPT2LMHeadModel else "score"]

    model.save_pretrained(tmp_path / "int8")
    assert load_file(tmp_path / "int8" / "model.safetensors")[f"{next(iter(NAMES))}._weight_qdata"].shape == (192, 64)
    again = model_class.from_pretrained(tmp_path / "int8")
    assert torch.equal(logits(again), logits(model))
    assert all(isinstance(again.get_submodule(name), Int8Linear) for name in NAMES)

    back = again.dequantize()
    for name, (n, k) in NAMES.items():
        assert type(back.get_submodule(name)) is Conv1D and back.get_submodule(name).weight.shape == (k, n)
    assert sqnr_db(logits(floats), logits(back)) > 28
    back.save_pretrained(tmp_path / "float")
    assert torch.equal(logits(model_class.from_pretrained(tmp_path / "float")), logits(back))


def test_weights_are_transposed_and_nothing_else(save_tiny):
    """Values, not shapes alone: c_proj is square."""
    floats = gpt2()
    model = quantized(save_tiny(copy.deepcopy(floats)), fold=False)
    for name in NAMES:
        weight = model.get_submodule(name).weight
        step = weight.scale * weight.act_pre_scale
        error = (weight.qdata * step - floats.get_submodule(name).weight.T).abs()
        assert (error <= 0.5001 * step).all()


def test_generate(save_tiny, tmp_path):
    model = quantized(save_tiny(gpt2()))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    mask = torch.ones_like(IDS)
    tokens = [
        one.generate(IDS, attention_mask=mask, max_new_tokens=8, do_sample=False, use_cache=use_cache)
        for one, use_cache in ((model, True), (model, False), (again, True))
    ]
    assert tokens[0].shape[1] > 10 and torch.equal(tokens[0], tokens[1]) and torch.equal(tokens[0], tokens[2])


def test_compile(save_tiny):
    model = quantized(save_tiny(gpt2()))
    compiled = hf_smoothquant.compile(model)
    assert sqnr_db(logits(model), logits(compiled)) > 40
    assert (
        compiled.fusion_coverage.fused == (0 if cpu.SATURATES else len(NAMES)) and not compiled.fusion_coverage.unfused
    )


def test_selection():
    model = gpt2()
    config = SmoothQuantConfig(modules_to_not_convert=["h.0"], min_features=200)
    selection = select_linears(model, config)
    assert not selection.convert
    assert selection.kept["transformer.h.0.mlp.c_fc"] == "excluded by 'h.0'"
    assert selection.kept["transformer.h.1.mlp.c_fc"] == "fewer than 200 features"

    class Doubled(Conv1D):
        def forward(self, x):
            return 2 * super().forward(x)

    model.transformer.h[0].mlp.c_fc = Doubled(256, 64)
    kept = select_linears(model, SmoothQuantConfig()).kept
    assert kept["transformer.h.0.mlp.c_fc"] == "is a Doubled, not a plain nn.Linear"


def test_what_stays_in_float_stays_a_conv1d(transformers_warnings):
    model = gpt2()
    model.spare = Conv1D(64, 64)
    excluded = model.transformer.h[0].mlp.c_fc
    weight = excluded.weight.clone()
    quantize_model(model, SmoothQuantConfig(dataset=[IDS], modules_to_not_convert=["h.0.mlp.c_fc"]))
    assert "never reached them: spare." in transformers_warnings.text
    assert type(model.spare) is Conv1D and type(excluded) is Conv1D and torch.equal(excluded.weight, weight)
    assert repr(model.spare) == "Conv1D(nf=64, nx=64)"
    assert isinstance(model.transformer.h[0].mlp.c_proj, Int8Linear)


def test_a_failed_calibration_leaves_conv1d():
    model = gpt2()
    reference = {name: parameter.clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        model.transformer.wte.weight[7] = float("nan")
    with pytest.raises(ValueError, match=r"h\.0\.attn\.c_attn' has NaN"):
        quantize_model(model, SmoothQuantConfig(dataset=[torch.tensor([[7, 8]])]))
    for name in NAMES:
        assert type(model.get_submodule(name)) is Conv1D
        assert torch.equal(model.get_submodule(name).weight, reference[f"{name}.weight"])


def test_as_linear_shares_memory_and_weights():
    first, second, other = Conv1D(48, 32), Conv1D(48, 32), nn.Linear(32, 48)
    second.weight = first.weight
    memory, x = first.weight.data_ptr(), torch.randn(2, 5, 32)
    expected = first(x)
    with conv1d_as_linear([first, second, other]):
        assert type(first) is nn.Linear and first.weight is second.weight and first.weight.shape == (48, 32)
        assert first.weight.data_ptr() == memory
        torch.testing.assert_close(first(x), expected)
    assert type(first) is Conv1D and type(other) is nn.Linear
    assert first.weight is second.weight and first.weight.data_ptr() == memory
    assert torch.equal(first(x), expected)


def test_a_shared_weight_is_quantized_once():
    model = gpt2()
    first, second = (layer.mlp for layer in model.transformer.h)
    second.c_fc.weight = first.c_fc.weight
    reference = logits(model)
    quantize_model(model, SmoothQuantConfig(dataset=[IDS]))
    assert first.c_fc.weight is second.c_fc.weight
    assert sqnr_db(reference, logits(model)) > 28
    dequantize_model(model)
    assert type(first.c_fc) is Conv1D and first.c_fc.weight is second.c_fc.weight
    assert sqnr_db(reference, logits(model)) > 28
