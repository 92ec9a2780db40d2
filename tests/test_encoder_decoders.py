"""Encoder-decoders by architecture: T5 and T5 v1.1, BART, Whisper."""

from dataclasses import replace

import pytest
import torch
from architectures import (
    FP32,
    IDS,
    TIED,
    Architecture,
    check_compiled,
    check_quantized,
    compile_cases,
    generator,
    names,
    text_batch,
)
from conftest import sqnr_db
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

T5 = {"vocab_size": 64, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 3}
BART = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
BART |= {"vocab_size": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.1}
BART |= {**IDS, "decoder_start_token_id": 2}
ENCODER, DECODER = "encoder.block.*.layer.*", "decoder.block.*.layer.*"
ATTENTION = "q_proj k_proj v_proj out_proj"


def seq2seq_batch(seed):
    """The decoder reads another text than the encoder, of another length."""
    return {**text_batch(seed), "decoder_input_ids": text_batch(seed + 50, length=12)["input_ids"]}


def speech_batch(seed):
    random = generator(seed)
    ids = torch.randint(5, 64, (2, 9), generator=random)
    return {"input_features": torch.randn(2, 8, 60, generator=random), "decoder_input_ids": ids}


def t5(*feed_forward: str) -> dict:
    """`wo` stays in float32, as the model asks."""
    inner = [f"DenseReluDense.{name}" for name in feed_forward]
    here, across = (" ".join(f"{kind}.{name}" for name in "qkvo") for kind in ("SelfAttention", "EncDecAttention"))
    folded = {}
    for layer, kinds in ((ENCODER, ["SelfAttention"]), (DECODER, ["SelfAttention", "EncDecAttention"])):
        folded |= {f"{layer}.{first}": f"{layer}.layer_norm" for first in [*(f"{kind}.q" for kind in kinds), inner[0]]}
        folded |= {f"{layer}.{kind}.o": f"{layer}.{kind}.v" for kind in kinds}
    return {
        "quantized": names(ENCODER, f"{here} {' '.join(inner)}") | names(DECODER, f"{here} {across} {' '.join(inner)}"),
        "folded": folded,
        "kept": {f"{layer}.DenseReluDense.wo": FP32 for layer in (ENCODER, DECODER)} | {"lm_head": TIED},
        "batch": seq2seq_batch,
    }


def bart_like() -> dict:
    inner = "fc1 fc2 " + " ".join(f"self_attn.{name}" for name in ATTENTION.split())
    across = " ".join(f"encoder_attn.{name}" for name in ATTENTION.split())
    values = {}
    for layer, kinds in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        values |= {f"model.{layer}.layers.*.{kind}.out_proj": f"model.{layer}.layers.*.{kind}.v_proj" for kind in kinds}
    return {
        "quantized": names("model.encoder.layers.*", inner) | names("model.decoder.layers.*", f"{inner} {across}"),
        "folded": values,
    }


def whisper_folded() -> dict:
    """BART's, and its norms: they come before, and nothing else reads them."""
    norms = {}
    for layer in ("model.encoder.layers.*", "model.decoder.layers.*"):
        norms[f"{layer}.self_attn.q_proj"] = f"{layer}.self_attn_layer_norm"
        norms[f"{layer}.fc1"] = f"{layer}.final_layer_norm"
    norms["model.decoder.layers.*.encoder_attn.q_proj"] = "model.decoder.layers.*.encoder_attn_layer_norm"
    return bart_like()["folded"] | norms


ENCODER_DECODERS = {
    "T5": Architecture(T5ForConditionalGeneration, T5Config(**T5), **t5("wi"), min_sqnr_db=(27, 36)),
    "T5 v1.1": Architecture(
        T5ForConditionalGeneration,
        T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
        **t5("wi_0", "wi_1"),
        min_sqnr_db=(22, 34),
    ),
    "BART": Architecture(
        BartForConditionalGeneration,
        BartConfig(**BART, max_position_embeddings=130),
        **bart_like(),
        kept={"lm_head": TIED},
        min_sqnr_db=(23, 34),
        batch=seq2seq_batch,
    ),
    "Whisper": Architecture(
        WhisperForConditionalGeneration,
        WhisperConfig(**BART, num_mel_bins=8, max_source_positions=30, max_target_positions=32),
        **bart_like() | {"folded": whisper_folded()},
        kept={"proj_out": TIED},
        min_sqnr_db=(23, 29),
        batch=speech_batch,
    ),
}


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_quantize_and_reload(name, tmp_path):
    check_quantized(ENCODER_DECODERS[name], tmp_path)


def check_generation(architecture, model):
    """The encoder runs once; cached keys and values of both attentions are right to the end."""
    inputs = {key: value for key, value in architecture.batch(9).items() if not key.startswith("decoder")}
    tokens = model.generate(
        **inputs, do_sample=False, min_new_tokens=8, max_new_tokens=8, output_logits=True, return_dict_in_generate=True
    )
    with torch.no_grad():
        whole = model(**inputs, decoder_input_ids=tokens.sequences, use_cache=False).logits[:, -9:-1]
    assert sqnr_db(whole, torch.stack(tokens.logits, 1)) > 20


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_generate(name, tmp_path):
    architecture = ENCODER_DECODERS[name]
    architecture.build().save_pretrained(tmp_path)
    check_generation(architecture, architecture.quantize(tmp_path))


def test_data_with_decoder_input_ids_of_another_length(tmp_path):
    """The encoder's mask isn't taken for the decoder's."""
    architecture = ENCODER_DECODERS["BART"]
    architecture.build().save_pretrained(tmp_path)
    model = architecture.quantize(tmp_path)
    assert model.config.quantization_config.calibration["num_samples"] == 12


def test_compile(tmp_path):
    check_compiled(replace(ENCODER_DECODERS["T5"], config=T5Config(**T5 | {"num_layers": 1})), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "activation"), compile_cases(ENCODER_DECODERS))
def test_compile_all(name, activation, tmp_path):
    check_compiled(ENCODER_DECODERS[name], tmp_path, activation=activation)
