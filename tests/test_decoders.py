"""Decoders by architecture: GPT-2's Conv1D, OPT, Llama, grouped queries, a mixture of experts; and `generate()`."""

import pytest
import torch
from architectures import (
    IDS,
    OUTPUT,
    OWN,
    TEXT,
    TIED,
    Architecture,
    check_compiled,
    check_quantized,
    compile_cases,
    names,
)
from conftest import sqnr_db
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import hf_smoothquant

ATTENTION = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj"
MLP = "mlp.gate_proj mlp.up_proj mlp.down_proj"
LLAMA_FOLDED = {
    "model.layers.*.self_attn.q_proj": "model.layers.*.input_layernorm",
    "model.layers.*.mlp.gate_proj": "model.layers.*.post_attention_layernorm",
    "model.layers.*.mlp.down_proj": "model.layers.*.mlp.up_proj",
}
OPT_LAYER = "model.decoder.layers.*"
DECODERS = {
    "GPT-2": Architecture(
        GPT2LMHeadModel,
        GPT2Config(vocab_size=64, n_positions=130, n_embd=64, n_layer=2, n_head=4, initializer_range=0.1, **IDS),
        quantized=names("transformer.h.*", "attn.c_attn attn.c_proj mlp.c_fc mlp.c_proj"),
        folded={
            "transformer.h.*.attn.c_attn": "transformer.h.*.ln_1",
            "transformer.h.*.mlp.c_fc": "transformer.h.*.ln_2",
        },
        kept={"lm_head": TIED},
        min_sqnr_db=(26, 31),
    ),
    "OPT": Architecture(
        OPTForCausalLM,
        OPTConfig(
            vocab_size=64,
            max_position_embeddings=130,
            hidden_size=64,
            word_embed_proj_dim=64,
            ffn_dim=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            init_std=0.1,
            **IDS,
        ),
        quantized=names(OPT_LAYER, "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj fc1 fc2"),
        folded={
            f"{OPT_LAYER}.self_attn.q_proj": f"{OPT_LAYER}.self_attn_layer_norm",
            f"{OPT_LAYER}.self_attn.out_proj": f"{OPT_LAYER}.self_attn.v_proj",
            f"{OPT_LAYER}.fc1": f"{OPT_LAYER}.final_layer_norm",
            f"{OPT_LAYER}.fc2": f"{OPT_LAYER}.fc1",
        },
        kept={"lm_head": TIED},
        min_sqnr_db=(23, 30),
    ),
    "Llama": Architecture(
        LlamaForCausalLM,
        LlamaConfig(**TEXT, **IDS),
        quantized=names("model.layers.*", f"{ATTENTION} {MLP}"),
        folded=LLAMA_FOLDED | {"model.layers.*.self_attn.o_proj": "model.layers.*.self_attn.v_proj"},
        kept={"lm_head": OUTPUT},
        min_sqnr_db=(18, 23),
    ),
    "Qwen3": Architecture(
        Qwen3ForCausalLM,
        Qwen3Config(**TEXT, **IDS, num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
        quantized=names("model.layers.*", f"{ATTENTION} {MLP}"),
        folded=LLAMA_FOLDED,  # several heads read each value, so that o_proj has factors of its own for each
        kept={"lm_head": TIED},
        min_sqnr_db=(18, 25),
    ),
    "Mixtral": Architecture(
        MixtralForCausalLM,
        MixtralConfig(**TEXT, **IDS, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2),
        quantized=names("model.layers.*", ATTENTION),
        folded={"model.layers.*.self_attn.q_proj": "model.layers.*.input_layernorm"},
        kept={
            "lm_head": OUTPUT,
            "model.layers.*.mlp.gate": OWN,  # the router
            "model.layers.*.mlp.experts": OWN,  # stacked to one tensor of three dimensions
        },
        min_sqnr_db=(18, 18),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_quantize_and_reload(name, tmp_path):
    check_quantized(DECODERS[name], tmp_path)


PROMPT = torch.arange(5, 25).reshape(2, 10)
MASK = torch.ones_like(PROMPT)
MASK[0, :3] = 0  # generation pads on the left


def check_generation(model, **arguments):
    """Generates eight tokens; the logits of each step are those of one pass over all, up to rounding."""
    result = model.generate(
        PROMPT,
        attention_mask=MASK,
        min_new_tokens=8,
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **arguments,
    )
    assert result.sequences.shape == (2, 18)
    mask = torch.cat([MASK, torch.ones(2, 8, dtype=MASK.dtype)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    extra = {} if isinstance(model, OPTForCausalLM) else {"position_ids": positions}  # OPT finds them by the mask
    with torch.no_grad():
        whole = model(result.sequences, attention_mask=mask, use_cache=False, **extra).logits[:, 9:-1]
    assert sqnr_db(whole, torch.stack(result.logits, 1)) > 20
    return result.sequences


@pytest.mark.parametrize("name", DECODERS)
def test_generate(name, tmp_path):
    """With a growing and a static cache; the saved model gives the same tokens."""
    architecture = DECODERS[name]
    architecture.build().save_pretrained(tmp_path / "float")
    model = architecture.quantize(tmp_path / "float", activation="dynamic" if name == "Llama" else "static")
    model.save_pretrained(tmp_path / "int8")
    tokens = check_generation(model)
    check_generation(model, cache_implementation="static", disable_compile=True)
    assert torch.equal(check_generation(architecture.model_class.from_pretrained(tmp_path / "int8")), tokens)


def test_compile(tmp_path):
    check_compiled(DECODERS["Qwen3"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "activation"), compile_cases(DECODERS))
def test_compile_all(name, activation, tmp_path):
    check_compiled(DECODERS[name], tmp_path, activation=activation)


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODERS)
def test_generate_compiled(name, tmp_path):
    """One graph for the prompt and one for all later tokens: the static cache has the same shape at every step."""
    architecture = DECODERS[name]
    architecture.build().save_pretrained(tmp_path)
    compiled = hf_smoothquant.compile(architecture.quantize(tmp_path))
    check_generation(compiled, cache_implementation="static")
    fused = compiled.fusion_coverage.fused
    check_generation(compiled, cache_implementation="static")
    assert compiled.fusion_coverage.fused == fused and not compiled.fusion_coverage.unfused
