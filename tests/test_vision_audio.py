"""Vision and audio models by architecture: ViT, CLIP (two towers), wav2vec2."""

import pytest
import torch
from architectures import (
    FEW,
    IDS,
    TEXT,
    Architecture,
    check_compiled,
    check_quantized,
    compile_cases,
    generator,
    names,
    text_batch,
)
from conftest import SMALL
from transformers import (
    CLIPConfig,
    CLIPModel,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

IMAGE = {"image_size": 16, "patch_size": 4}
TOWERS = ("text_model.encoder.layers.*", "vision_model.encoder.layers.*")
TOWER_LAYER = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj mlp.fc1 mlp.fc2"


def image_batch(seed):
    return {"pixel_values": torch.randn(4, 3, 16, 16, generator=generator(seed))}


def audio_batch(seed):
    return {"input_values": torch.randn(2, 400, generator=generator(seed))}


def clip_folded():
    folded = {}
    for layer in TOWERS:
        folded[f"{layer}.self_attn.q_proj"] = f"{layer}.layer_norm1"
        folded[f"{layer}.self_attn.out_proj"] = f"{layer}.self_attn.v_proj"
        folded[f"{layer}.mlp.fc1"] = f"{layer}.layer_norm2"
    return folded


VIT, WAV2VEC2 = "vit.layers.*", "wav2vec2.encoder.layers.*"
VISION_AUDIO = {
    "ViT": Architecture(
        ViTForImageClassification,
        ViTConfig(**SMALL, **IMAGE, initializer_range=0.1),
        quantized=names(VIT, "attention.q_proj attention.k_proj attention.v_proj attention.o_proj mlp.fc1 mlp.fc2"),
        folded={
            f"{VIT}.attention.q_proj": f"{VIT}.layernorm_before",
            f"{VIT}.attention.o_proj": f"{VIT}.attention.v_proj",
            f"{VIT}.mlp.fc1": f"{VIT}.layernorm_after",
        },
        kept={"classifier": FEW},
        min_sqnr_db=(18, 23),
        batch=image_batch,
    ),
    "CLIP": Architecture(
        CLIPModel,
        CLIPConfig(
            text_config=dict(**TEXT, **IDS, projection_dim=32),
            vision_config=dict(**SMALL, **IMAGE, projection_dim=32, initializer_range=0.2),
            projection_dim=32,
        ),
        quantized=names(TOWERS[0], TOWER_LAYER)
        | names(TOWERS[1], TOWER_LAYER)
        | {"text_projection", "visual_projection"},
        folded=clip_folded(),
        min_sqnr_db=(16, 24),
        batch=lambda seed: {**text_batch(seed), **image_batch(seed)},
    ),
    "wav2vec2": Architecture(
        Wav2Vec2ForCTC,
        Wav2Vec2Config(
            **SMALL,
            vocab_size=40,
            conv_dim=(32, 32),
            conv_stride=(4, 2),
            conv_kernel=(8, 4),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=4,
            initializer_range=0.2,
            pad_token_id=0,
        ),
        quantized=names(
            WAV2VEC2,
            "attention.q_proj attention.k_proj attention.v_proj attention.out_proj"
            " feed_forward.intermediate_dense feed_forward.output_dense",
        )
        | {"wav2vec2.feature_projection.projection", "lm_head"},
        folded={f"{WAV2VEC2}.attention.out_proj": f"{WAV2VEC2}.attention.v_proj"},
        min_sqnr_db=(15, 24),
        batch=audio_batch,
    ),
}


@pytest.mark.parametrize("name", VISION_AUDIO)
def test_quantize_and_reload(name, tmp_path):
    check_quantized(VISION_AUDIO[name], tmp_path)


def test_compile(tmp_path):
    check_compiled(VISION_AUDIO["ViT"], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "activation"), compile_cases(VISION_AUDIO))
def test_compile_all(name, activation, tmp_path):
    check_compiled(VISION_AUDIO[name], tmp_path, activation=activation)
