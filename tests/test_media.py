"""Images and audio as calibration data: the processors of transformers, tiny models, nothing downloaded."""

import datasets
import numpy as np
import pytest
import torch
from conftest import SMALL, write_tokenizer
from transformers import (
    AutoModel,
    CLIPConfig,
    CLIPModel,
    CLIPProcessor,
    ProcessorMixin,
    ViTConfig,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.data import calibration_data

Image = pytest.importorskip("PIL.Image")
SIZE = {"height": 32, "width": 32}


def photo(height=20, width=30, mode="RGB"):
    return Image.fromarray(np.random.default_rng(height).integers(0, 255, (height, width, 3), np.uint8)).convert(mode)


def sound(length, rate=16000):
    return np.sin(np.arange(length) * 440 * 2 * np.pi / rate).astype(np.float32)


def image_processor(kind="ViT"):
    import transformers

    return getattr(transformers, f"{kind}ImageProcessor")(size=SIZE, **({"crop_size": SIZE} if kind == "CLIP" else {}))


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vit")
    ViTModel(ViTConfig(image_size=32, patch_size=8, **SMALL)).save_pretrained(folder)
    image_processor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def wav2vec2(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wav2vec2")
    sizes = {"conv_dim": (32, 32), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embedding_groups": 4}
    Wav2Vec2Model(Wav2Vec2Config(num_feat_extract_layers=2, **SMALL, **sizes)).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    """With a window of a second, not of 30."""
    folder = tmp_path_factory.mktemp("whisper")
    sizes = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "num_mel_bins": 16}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}
    config = WhisperConfig(vocab_size=64, max_source_positions=50, **sizes, **heads, **special)
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=16, chunk_length=1).save_pretrained(folder)
    return folder


def batches_of(model, **arguments):
    data = calibration_data(SmoothQuantConfig(**arguments), model)
    return list(data), data


def quantize(folder, **arguments):
    return AutoModel.from_pretrained(folder, quantization_config=SmoothQuantConfig(**arguments), dtype=torch.float32)


def int8_linears(model):
    return {name for name, module in model.named_modules() if type(module).__name__ == "Int8Linear"}


@pytest.mark.parametrize("kind", ["list", "arrays", "table", "processed", "tensors"])
def test_images(vit, kind):
    """All kinds give what the model's own processor makes of the photographs."""
    photos = [photo(20), photo(40), photo(60)]
    processor = image_processor()
    pixels = torch.cat([processor(one, return_tensors="pt")["pixel_values"] for one in photos])
    table = datasets.Dataset.from_dict({"image": photos, "label": [0, 1, 2]})
    processed = table.map(lambda row: {"pixel_values": processor(row["image"])["pixel_values"][0]})
    dataset = {
        "list": photos,
        "arrays": [np.asarray(one) for one in photos],
        "table": table,
        "processed": processed.remove_columns("image"),
        "tensors": processed.with_format("torch", columns=["pixel_values"]),
    }[kind]
    model = AutoModel.from_pretrained(vit)
    (batch,), data = batches_of(model, dataset=dataset)
    assert batch.keys() == {"pixel_values"} and batch["pixel_values"].shape == (3, 3, 32, 32)
    key = torch.Tensor.sum
    order = [sorted(range(3), key=lambda i, of=of: key(of[i]).item()) for of in (batch["pixel_values"], pixels)]
    torch.testing.assert_close(batch["pixel_values"][order[0]], pixels[order[1]], rtol=1e-5, atol=1e-5)
    assert data.describe()["num_samples"] == 3 and data.describe()["num_tokens"] is None


def test_a_vision_model_from_end_to_end(vit):
    photos = [photo(20 + i, mode="L" if i % 2 else "RGB") for i in range(9)]
    model = quantize(vit, dataset=photos, batch_size=4)
    floats = AutoModel.from_pretrained(vit)
    pixels = image_processor()(photo(50), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected, got = (one(pixels).last_hidden_state for one in (floats, model))
    assert len(int8_linears(model)) == 2 * 6 + 1
    assert torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.99


def test_images_with_texts(tmp_path):
    text = {**SMALL, "vocab_size": 64, "max_position_embeddings": 34, "eos_token_id": 3, "pad_token_id": 0}
    config = CLIPConfig(text_config=text, vision_config={**SMALL, "image_size": 32, "patch_size": 8})
    CLIPModel(config).save_pretrained(tmp_path)
    CLIPProcessor(image_processor("CLIP"), write_tokenizer(tmp_path)).save_pretrained(tmp_path)
    table = datasets.Dataset.from_dict({"image": [photo(20), photo(25)], "caption": ["a cat", "an old cat"]})
    floats = AutoModel.from_pretrained(tmp_path)
    batches, data = batches_of(floats, dataset=table)
    assert {len(batch["input_ids"]) for batch in batches} == {1} and data.num_tokens == (4 + 2) + (8 + 2)
    model = quantize(tmp_path, dataset=table)
    assert {name.split(".")[0] for name in int8_linears(model)} >= {"text_model", "vision_model"}
    (batch, _) = batches
    with torch.no_grad():
        expected, got = floats(**batch).image_embeds, model(**batch).image_embeds
    assert torch.nn.functional.cosine_similarity(got, expected).min() > 0.98


@pytest.mark.parametrize("kind", ["arrays", "dicts", "table", "rows"])
def test_audio_is_batched_by_length(wav2vec2, kind):
    """No padding: behind the convolutions nobody could tell it from sound."""
    sounds = [sound(900), sound(1300), sound(900)]
    dataset = {
        "arrays": sounds,
        "dicts": [{"array": one, "sampling_rate": 16000} for one in sounds],
        "table": datasets.Dataset.from_dict({"audio": sounds, "label": [0, 1, 0]}),
        "rows": [{"speech": {"array": one.tolist(), "sampling_rate": 16000}, "text": "la la"} for one in sounds],
    }[kind]
    batches, data = batches_of(AutoModel.from_pretrained(wav2vec2), dataset=dataset)
    assert sorted(tuple(batch["input_values"].shape) for batch in batches) == [(1, 1300), (2, 900)]
    assert data.num_samples == 3 and data.num_tokens is None
    assert abs(batches[0]["input_values"].std().item() - 1) < 0.01  # normalized by the feature extractor


def test_an_audio_model_from_end_to_end(wav2vec2):
    model = quantize(wav2vec2, dataset=[sound(length) for length in (900, 1200, 1500)])
    floats, x = AutoModel.from_pretrained(wav2vec2), torch.from_numpy(sound(1000)[None])
    with torch.no_grad():
        expected, got = (one(x).last_hidden_state for one in (floats, model))
    assert torch.nn.functional.cosine_similarity(got.flatten(), expected.flatten(), dim=0) > 0.99


def test_transcripts_go_to_the_decoder(whisper, tmp_path):
    model = WhisperForConditionalGeneration.from_pretrained(whisper)
    rows = [{"audio": {"array": sound(9000), "sampling_rate": 16000}, "sentence": "a bc"}]
    (batch,), _ = batches_of(model, dataset=rows)  # no tokenizer in the folder
    assert batch["input_features"].shape == (1, 16, 100) and "decoder_input_ids" not in batch
    # As WhisperProcessor, whose tokenizer takes no vocabulary of letters.
    processor = type("Processor", (ProcessorMixin,), {"__init__": lambda self: None})()
    processor.feature_extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=1)
    processor.tokenizer = write_tokenizer(tmp_path)
    (batch,), _ = batches_of(model, dataset=rows, tokenizer=processor)
    assert batch["decoder_input_ids"].shape == (1, 5)
    config = SmoothQuantConfig(dataset=[sound(9000), sound(16000)])
    quantized = WhisperForConditionalGeneration.from_pretrained(whisper, quantization_config=config)
    names = int8_linears(quantized)
    assert any("encoder" in name for name in names) and any("decoder" in name for name in names)


def test_what_does_not_fit_says_so(vit, wav2vec2, tiny_bert, tmp_path):
    image_model, audio_model = AutoModel.from_pretrained(vit), AutoModel.from_pretrained(wav2vec2)
    with pytest.raises(ValueError, match="ViTModel doesn't read texts"):
        batches_of(image_model)
    with pytest.raises(ValueError, match=r"sample 0 .*recorded at 44100 Hz and the model takes 16000\. Resample"):
        batches_of(audio_model, dataset=[{"array": sound(900), "sampling_rate": 44100}])
    with pytest.raises(TypeError, match=r"Sample 1 .* no image and no audio"):
        batches_of(image_model, dataset=[photo(), "a photo"])
    with pytest.raises(ValueError, match="pass a tokenizer, or a processor with one"):
        batches_of(AutoModel.from_pretrained(tiny_bert), dataset=["a"], tokenizer=image_processor())
    image_model.name_or_path = str(tmp_path)
    with pytest.raises(ValueError, match=r"No processor found.*images.*AutoImageProcessor"):
        batches_of(image_model, dataset=[photo()])
    assert batches_of(image_model, dataset=[photo()], tokenizer=str(vit))[1].num_samples == 1
