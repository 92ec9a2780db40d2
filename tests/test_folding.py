import copy

import pytest
import torch
from conftest import SMALL, TEXTS, sqnr_db
from transformers import (
    AutoModelForQuestionAnswering,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MixtralConfig,
    MixtralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    OlmoConfig,
    OlmoForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
)

from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.calibration.observer import observe
from hf_smoothquant.conv1d import conv1d_as_linear
from hf_smoothquant.conversion import quantize_model
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.selection import select_linears
from hf_smoothquant.smoothing.folding import divide_outputs, find_folds

IDS = torch.arange(5, 25).reshape(2, 10)
TEXT = {"input_ids": IDS, "attention_mask": torch.tensor([[1] * 10, [1] * 7 + [0] * 3])}
PIXELS = {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))}
DECODER = {**SMALL, "vocab_size": 64}
MHA, GQA = {**DECODER, "num_key_value_heads": 4}, {**DECODER, "num_key_value_heads": 2}
MODERNBERT_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
LLAMA = {
    "q_proj": "input_layernorm",
    "o_proj": "v_proj",
    "gate_proj": "post_attention_layernorm",
    "down_proj": "up_proj",
}
# For each architecture and the first Linear of each group of a layer: the module that takes its factors.
ARCHITECTURES = {
    "BERT": (
        BertModel,
        BertConfig(**DECODER),
        # Its norms feed the residual, too.
        {
            "query": None,
            "attention.output.dense": "value",
            "intermediate.dense": None,
            "output.dense": None,
            "pooler.dense": None,
        },
    ),
    "DistilBERT": (
        DistilBertModel,
        DistilBertConfig(dim=64, n_layers=2, n_heads=4, hidden_dim=128, vocab_size=64),
        {"q_lin": None, "out_lin": "v_lin", "lin1": None, "lin2": None},
    ),
    # Values share a Linear with queries and keys, and up with gate; the first layer has no norm of its own.
    "ModernBERT": (
        ModernBertModel,
        ModernBertConfig(**DECODER, **dict.fromkeys(MODERNBERT_TOKENS, 0)),
        {"Wqkv": "attn_norm", "layers.0.attn.Wqkv": None, "attn.Wo": None, "Wi": "mlp_norm", "mlp.Wo": None},
    ),
    "Llama": (LlamaForCausalLM, LlamaConfig(**MHA), LLAMA),
    # A value head is read by several heads of o_proj, each with its own factors.
    "Llama with grouped heads": (LlamaForCausalLM, LlamaConfig(**GQA), LLAMA | {"o_proj": None}),
    # Queries and keys have norms with a weight, too.
    "Qwen3": (Qwen3ForCausalLM, Qwen3Config(**MHA, head_dim=16), LLAMA),
    "OPT": (
        OPTForCausalLM,
        OPTConfig(word_embed_proj_dim=64, ffn_dim=128, **DECODER),
        {"q_proj": "self_attn_layer_norm", "out_proj": "v_proj", "fc1": "final_layer_norm", "fc2": "fc1"},
    ),
    "GPT-2": (
        GPT2LMHeadModel,
        GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=64, bos_token_id=2, eos_token_id=3),
        # The values come out of the same Linear as queries and keys; GELU passes no scale on.
        {"c_attn": "ln_1", "attn.c_proj": None, "c_fc": "ln_2", "mlp.c_proj": None},
    ),
    "ViT": (
        ViTModel,
        ViTConfig(**SMALL, image_size=16, patch_size=8),
        {
            "q_proj": "layernorm_before",
            "o_proj": "v_proj",
            "fc1": "layernorm_after",
            "fc2": None,
            "pooler.dense": None,
        },
    ),
    # `wo` stays in float. The norm before the keys of the cross-attention is what the encoder returns.
    "T5": (
        T5ForConditionalGeneration,
        T5Config(vocab_size=64, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0),
        {"q": "layer_norm", "o": "v", "wi": "layer_norm", "EncDecAttention.k": None},
    ),
    # The norm before a router isn't folded into.
    "Mixtral": (
        MixtralForCausalLM,
        MixtralConfig(**GQA, num_local_experts=4),
        {"q_proj": "input_layernorm", "o_proj": None},
    ),
    # Its norms multiply by 1 + weight.
    "Gemma": (
        GemmaForCausalLM,
        GemmaConfig(**MHA, head_dim=16),
        LLAMA | {"q_proj": None, "gate_proj": None},
    ),
    # Its norms have no weight, and it clamps the values, though none reaches the limit here.
    "OLMo": (
        OlmoForCausalLM,
        OlmoConfig(**MHA, clip_qkv=1e3),
        {"q_proj": None, "o_proj": None, "gate_proj": None, "down_proj": "up_proj"},
    ),
}


def float_model(architecture, dtype=torch.float32):
    """A tiny model with norms and biases that aren't ones and zeros, and a batch for it."""
    model_class, config, _ = ARCHITECTURES[architecture]
    model = model_class(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    inputs = {ViTModel: PIXELS, T5ForConditionalGeneration: TEXT | {"decoder_input_ids": IDS}}.get(model_class, TEXT)
    inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
    return model.to(dtype), inputs


def groups_of(model, inputs):
    linears = select_linears(model, SmoothQuantConfig()).convert
    with torch.no_grad(), conv1d_as_linear(linears.values()), observe(linears) as observer:
        model(**inputs)
    return [{name: linears[name] for name in group.names} for group in observer.groups()]


def factors_of(groups):
    return [torch.rand(next(iter(group.values())).in_features) * 3 + 0.2 for group in groups]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folded_and_smoothed_float_model_equals_the_original(architecture):
    model, inputs = float_model(architecture)
    original = copy.deepcopy(model)
    groups = groups_of(model, inputs)
    with conv1d_as_linear(linear for group in groups for linear in group.values()), torch.no_grad():
        factors = factors_of(groups)
        folds = find_folds(model, groups, inputs)
        for name, parameter in original.named_parameters():
            if not name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):  # for now transposed
                assert torch.equal(parameter, model.get_parameter(name))
        for index, name in folds.items():
            divide_outputs(model.get_submodule(name), factors[index])
            for linear in groups[index].values():
                linear.weight *= factors[index]
        torch.testing.assert_close(model(**inputs)[0], original(**inputs)[0], rtol=1e-5, atol=2e-5)
        assert folds and not torch.equal(
            *(m.get_submodule(next(iter(folds.values()))).weight for m in (model, original))
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_which_groups_fold(architecture, dtype):
    model, inputs = float_model(architecture, dtype)
    expected = ARCHITECTURES[architecture][2]
    unfolded = copy.deepcopy(model)
    _, report = quantize_model(model, SmoothQuantConfig(dataset=[inputs]))
    met = set()
    for group in report.groups:
        key = max((key for key in expected if f".{group.names[0]}".endswith(f".{key}")), key=len)
        met.add(key)
        producer = expected[key]
        assert (group.folded_into is None) == (producer is None), group.names
        assert producer is None or f".{group.folded_into}".endswith(f".{producer}"), group.names
        for name in group.names:
            assert (model.get_submodule(name).weight.act_pre_scale is None) == (producer is not None)
    assert met == set(expected)
    quantize_model(unfolded, SmoothQuantConfig(dataset=[inputs], fold=False))
    assert all(one.weight.act_pre_scale is not None for one in unfolded.modules() if isinstance(one, Int8Linear))
    for name, linear in unfolded.named_modules():
        if isinstance(linear, Int8Linear):  # folding changes no int8 value
            folded = model.get_submodule(name)
            assert torch.equal(folded.weight.qdata, linear.weight.qdata)
            assert torch.equal(folded.weight.act_quant_scale, linear.weight.act_quant_scale)
    with torch.no_grad():
        one, two = unfolded(**inputs)[0], model(**inputs)[0]
    # The same but for roundings on the other side of a step.
    assert sqnr_db(one, two) > (25 if dtype == torch.float32 else 12)


def test_an_int8_linear_takes_factors_in_its_scales():
    """v_proj by hand: the scale of row j and the bias are divided by what o_proj's input channel j is divided by."""
    model, inputs = float_model("OPT")
    unfolded = copy.deepcopy(model)
    quantize_model(model, SmoothQuantConfig(dataset=[inputs]))
    quantize_model(unfolded, SmoothQuantConfig(dataset=[inputs], fold=False))
    folded, plain = (one.model.decoder.layers[1].self_attn for one in (model, unfolded))
    inverse = plain.out_proj.weight.act_pre_scale
    torch.testing.assert_close(folded.v_proj.weight.scale, plain.v_proj.weight.scale * inverse[:, None])
    torch.testing.assert_close(folded.v_proj.bias, plain.v_proj.bias * inverse)
    assert torch.equal(folded.q_proj.weight.scale, plain.q_proj.weight.scale)


@pytest.mark.parametrize("architecture", ["Llama", "OPT", "GPT-2"])
def test_dequantize_after_folding(architecture, tmp_path):
    """The factors stay in the modules before, and the function is the original's."""
    model, inputs = float_model(architecture)
    original = copy.deepcopy(model)
    model.save_pretrained(tmp_path / "float")
    config = SmoothQuantConfig(dataset=[inputs])
    model = type(model).from_pretrained(tmp_path / "float", quantization_config=config)
    assert any(group.folded_into for group in quantization_report(model).groups)
    model.save_pretrained(tmp_path / "int8")
    again = type(model).from_pretrained(tmp_path / "int8")
    with torch.no_grad():
        reference, logits = original(**inputs).logits, model(**inputs).logits
        assert torch.equal(again(**inputs).logits, logits)
        again.dequantize()
        # Weights alone are rounded then.
        assert sqnr_db(reference, again(**inputs).logits) > sqnr_db(reference, logits) > 20


def test_outputs_as_tuples():
    model = LlamaModel(LlamaConfig(**MHA, return_dict=False)).eval()
    assert len(find_folds(model, groups_of(model, TEXT), TEXT)) == 8


def test_a_norm_whose_output_the_base_model_returns_is_left_alone(tiny_bert):
    """The last norm of BERT feeds the head alone, and is what `model.bert(...)` returns."""
    config = SmoothQuantConfig(dataset=TEXTS, min_features=1)
    model = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, quantization_config=config)
    folded = {group.folded_into for group in quantization_report(model).groups} - {None}
    assert all(name.endswith("attention.self.value") for name in folded)
    assert model.qa_outputs.weight.act_pre_scale is not None
