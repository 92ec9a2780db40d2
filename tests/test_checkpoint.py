import json
import subprocess
import sys

import pytest
import torch
from conftest import IDS, SMALL, TEXTS, logits
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertForQuestionAnswering,
    MixtralConfig,
    MixtralForCausalLM,
    pipeline,
)

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.linear import Int8Linear

QUERY = "bert.encoder.layer.1.attention.self.query."


def quantize(folder, out, activation="static", dtype=torch.float32, **save_arguments):
    config = SmoothQuantConfig(activation=activation, dataset=TEXTS)
    model = AutoModelForQuestionAnswering.from_pretrained(folder, quantization_config=config, dtype=dtype)
    model.save_pretrained(out, **save_arguments)
    return model


@pytest.fixture(scope="module", params=["static", "dynamic"])
def saved(request, tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return quantize(tiny_bert, folder, request.param), folder


@pytest.fixture
def damaged(tiny_bert, tmp_path):
    """Returns a function that edits the tensors of a fresh static checkpoint and tries to load it."""
    quantize(tiny_bert, tmp_path)
    file = tmp_path / "model.safetensors"

    def load_after(edit):
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
        tensors = load_file(file)
        edit(tensors)
        save_file(tensors, file, metadata)
        return AutoModelForQuestionAnswering.from_pretrained(tmp_path)

    return load_after


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_reload_is_bit_identical(tiny_bert, tmp_path, activation, dtype, shard_size):
    model = quantize(tiny_bert, tmp_path, activation, dtype, max_shard_size=shard_size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == (shard_size == "20KB")
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path, dtype="auto")
    assert again.dtype == dtype and torch.equal(logits(model), logits(again))
    for name, parameter in model.state_dict().items():
        other = again.state_dict()[name]
        assert type(other) is type(parameter) and other.dtype == parameter.dtype
    assert again.config.quantization_config == model.config.quantization_config
    assert again.get_memory_footprint() == model.get_memory_footprint()


def test_reload_in_a_fresh_process(saved, tmp_path):
    model, folder = saved
    code = f"""
import torch, hf_smoothquant
from transformers import AutoModelForQuestionAnswering
model = AutoModelForQuestionAnswering.from_pretrained({str(folder)!r})
with torch.no_grad():
    output = model(torch.arange(5, 25).reshape(2, 10))
torch.save(torch.stack([output.start_logits, output.end_logits]), {str(tmp_path / "out.pt")!r})
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Calibrating" not in run.stderr
    assert torch.equal(torch.load(tmp_path / "out.pt"), logits(model))


def test_saving_again_changes_nothing(saved, tmp_path):
    _, folder = saved
    AutoModelForQuestionAnswering.from_pretrained(folder).save_pretrained(tmp_path)
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)
    assert (folder / "config.json").read_text() == (tmp_path / "config.json").read_text()


def test_config_json_is_clean(saved, tiny_bert):
    _, folder = saved
    text = (folder / "config.json").read_text()
    assert str(tiny_bert) not in text and str(tiny_bert.parent) not in text and TEXTS[0] not in text
    stored = json.loads(text)["quantization_config"]
    tokens = stored["calibration"].pop("num_tokens")
    assert stored["calibration"] == {"dataset": "list", "num_samples": len(TEXTS)} and tokens > 100
    assert stored.keys() == SmoothQuantConfig().to_dict().keys()


def test_layout(saved):
    """The keys, dtypes and shapes of docs/format.md."""
    model, folder = saved
    tensors = load_file(folder / "model.safetensors")
    parts = {key.removeprefix(QUERY): value for key, value in tensors.items() if key.startswith(QUERY)}
    static = model.config.quantization_config.activation == "static"
    expected = {
        "_weight_qdata": (torch.int8, (64, 64)),
        "_weight_scale": (torch.float32, (64, 1)),
        "_weight_act_pre_scale": (torch.float32, (64,)),
        "bias": (torch.float32, (64,)),
    } | ({"_weight_act_quant_scale": (torch.float32, (1, 1, 1))} if static else {})
    assert {key: (value.dtype, tuple(value.shape)) for key, value in parts.items()} == expected
    key = QUERY.replace("query", "key")
    assert torch.equal(tensors[QUERY + "_weight_act_pre_scale"], tensors[key + "_weight_act_pre_scale"])


def test_head_of_another_task_and_bare_model(saved, transformers_warnings):
    model, folder = saved
    other = AutoModelForSequenceClassification.from_pretrained(folder)
    assert "classifier.weight" in transformers_warnings.text
    bare = AutoModel.from_pretrained(folder)
    assert isinstance(bare.encoder.layer[0].output.dense, Int8Linear)
    with torch.no_grad():
        expected = model.bert(IDS).last_hidden_state
        assert torch.equal(bare(IDS).last_hidden_state, expected)
        assert torch.equal(other.bert(IDS).last_hidden_state, expected)


def test_bare_model_checkpoint_under_a_head(tiny_bert, tmp_path):
    config = SmoothQuantConfig(dataset=TEXTS)
    bare = AutoModel.from_pretrained(tiny_bert, quantization_config=config, add_pooling_layer=False)
    bare.save_pretrained(tmp_path)
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(model.bert(IDS).last_hidden_state, bare(IDS).last_hidden_state)


def test_pipeline_from_the_folder(saved, tiny_bert):
    _, folder = saved
    features = pipeline("feature-extraction", model=str(folder), tokenizer=str(tiny_bert))("the bridge was built")
    assert torch.tensor(features).shape == (1, 19, 64)


@pytest.mark.parametrize("part", ["qdata", "scale", "act_quant_scale"])
def test_missing_part(damaged, part):
    with pytest.raises(ValueError, match=f"lacks the tensor '{QUERY}_weight_{part}'"):
        damaged(lambda tensors: tensors.pop(f"{QUERY}_weight_{part}"))


def test_missing_smoothing_factor(damaged):
    with pytest.raises(ValueError, match=f"lacks the tensor '{QUERY}_weight_act_pre_scale'"):
        damaged(lambda tensors: tensors.pop(f"{QUERY}_weight_act_pre_scale"))


def test_missing_float_tensor(damaged):
    with pytest.raises(ValueError, match=f"lacks the tensor '{QUERY}bias'"):
        damaged(lambda tensors: tensors.pop(f"{QUERY}bias"))


def test_missing_weight_entirely(damaged):
    def edit(tensors):
        for key in [key for key in tensors if key.startswith(f"{QUERY}_weight")]:
            del tensors[key]

    with pytest.raises(ValueError, match=f"lacks the tensor '{QUERY}_weight_"):
        damaged(edit)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("qdata", lambda tensor: tensor.float()),
        ("qdata", lambda tensor: tensor.flatten()),
        ("scale", lambda tensor: tensor.half()),
        ("scale", lambda tensor: tensor[:-1].clone()),
        ("act_pre_scale", lambda tensor: tensor[1:].clone()),
        ("act_quant_scale", lambda tensor: tensor.repeat(1, 1, 2)),
    ],
)
def test_wrong_shape_or_dtype(damaged, part, change):
    name = f"{QUERY}_weight_{part}"
    with pytest.raises(ValueError, match=f"'{name}'"):
        damaged(lambda tensors: tensors.update({name: change(tensors[name])}))


@pytest.mark.parametrize("part", ["qdata", "scale", "act_pre_scale", "act_quant_scale"])
def test_edited_values(damaged, part):
    def edit(tensors):
        tensors[f"{QUERY}_weight_{part}"].flatten()[0] += 1

    with pytest.raises(ValueError, match=rf"'{QUERY}weight' .*isn't what was saved"):
        damaged(edit)


def test_exchanged_weights(damaged):
    def edit(tensors):
        for part in ("qdata", "scale", "act_pre_scale", "act_quant_scale"):
            one, other = f"{QUERY}_weight_{part}", f"{QUERY}_weight_{part}".replace("layer.1", "layer.0")
            tensors[one], tensors[other] = tensors[other], tensors[one]

    with pytest.raises(ValueError, match="isn't what was saved"):
        damaged(edit)


def test_weight_of_another_size(damaged, transformers_warnings):
    def edit(tensors):
        tensors[f"{QUERY}_weight_qdata"] = tensors[f"{QUERY}_weight_qdata"][:32].clone()
        tensors[f"{QUERY}_weight_scale"] = tensors[f"{QUERY}_weight_scale"][:32].clone()

    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):  # transformers' own check and report
        damaged(edit)
    assert f"{QUERY}weight" in transformers_warnings.text and "torch.Size([32, 64])" in transformers_warnings.text


@pytest.mark.parametrize("keep", [0.9, 0.3, 0.001])
def test_truncated_file(tiny_bert, tmp_path, keep):
    quantize(tiny_bert, tmp_path)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * keep)])
    says = "model.safetensors can't be read" + (".*the tensor '(bert|qa)" if keep > 0.1 else "")
    with pytest.raises(ValueError, match=says):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


def test_float_weights_under_our_config(tiny_bert, tmp_path):
    quantize(tiny_bert, tmp_path)
    stored = BertForQuestionAnswering.from_pretrained(tiny_bert).state_dict()
    save_file(
        {key: value.contiguous() for key, value in stored.items()}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match="no int8 weight"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


def test_static_checkpoint_under_a_dynamic_config(tiny_bert, tmp_path):
    quantize(tiny_bert, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace('"static"', '"dynamic"'))
    with pytest.raises(ValueError, match=r"act_quant_scale.*'dynamic'"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


def test_newer_format_and_unknown_keys(saved, tmp_path, transformers_warnings):
    model, _ = saved
    model.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    stored = json.loads(file.read_text())
    stored["quantization_config"]["remark"] = "mine"
    file.write_text(json.dumps(stored))
    assert torch.equal(logits(AutoModelForQuestionAnswering.from_pretrained(tmp_path)), logits(model))
    assert "remark" in transformers_warnings.text
    stored["quantization_config"]["format_version"] = 2
    file.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"format version 2.*Upgrade"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)


def test_checkpoint_with_legacy_names(tiny_bert, tmp_path):
    """Old BERT checkpoints say gamma and beta; transformers saves them under these names again."""
    quantize(tiny_bert, tmp_path)  # for config.json and the tokenizer
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    state = BertForQuestionAnswering.from_pretrained(tiny_bert).state_dict()
    legacy = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in state.items()
    }
    save_file(legacy, tmp_path / "model.safetensors", {"format": "pt"})
    arguments = {"quantization_config": SmoothQuantConfig(dataset=[IDS])}
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path, **arguments)
    for original_format in (True, False):
        out = tmp_path / str(original_format)
        model.save_pretrained(out, save_original_format=original_format)
        stored = load_file(out / "model.safetensors")
        assert ("bert.embeddings.LayerNorm.gamma" in stored) == original_format
        assert torch.equal(logits(AutoModelForQuestionAnswering.from_pretrained(out)), logits(model))


def test_experts_that_are_stored_one_by_one(save_tiny, tmp_path):
    sizes = {**SMALL, "num_key_value_heads": 2, "num_local_experts": 4}
    folder = save_tiny(MixtralForCausalLM(MixtralConfig(vocab_size=64, **sizes)))
    config = SmoothQuantConfig(dataset=TEXTS)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.float32)
    model.save_pretrained(tmp_path)
    assert any(".experts.3." in key for key in load_file(tmp_path / "model.safetensors"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, again(IDS).logits)


def test_lost_metadata(tiny_bert, tmp_path):
    quantize(tiny_bert, tmp_path)
    file = tmp_path / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt"})
    with pytest.raises(ValueError, match="lost the metadata"):
        AutoModelForQuestionAnswering.from_pretrained(tmp_path)
