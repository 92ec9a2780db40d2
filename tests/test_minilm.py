"""Real weights: all-MiniLM-L6-v2 with the built-in corpus, judged on text that is not in it."""

import pytest
import torch
from conftest import sqnr_db
from transformers import AutoModel, AutoTokenizer

from hf_smoothquant import SmoothQuantConfig, quantization_report
from hf_smoothquant.linear import Int8Linear

SENTENCES = [
    "The library closes at nine on weekdays and at noon on Saturdays.",
    "My laptop refuses to start after the last update, and the fan is loud.",
    "Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.",
    "How do I reset the password of my account?",
    "Glaciers carve valleys with a U-shaped profile; rivers carve a V.",
    "The patient reported mild headaches, no fever, and was sent home.",
    "Bees communicate the direction of food by dancing on the comb.",
    "ok",
    "def binary_search(items, key): return bisect.bisect_left(items, key)",
    "Der Zug nach Hamburg hat heute leider zwanzig Minuten Verspätung.",
]


@pytest.fixture(scope="module")
def reference(minilm):
    model, tokenizer = AutoModel.from_pretrained(minilm, dtype=torch.float32), AutoTokenizer.from_pretrained(minilm)
    return model, tokenizer(SENTENCES, padding=True, return_tensors="pt")


@pytest.fixture(scope="module", params=["static", "dynamic"])
def int8(request, minilm):
    config = SmoothQuantConfig(activation=request.param)
    return AutoModel.from_pretrained(minilm, dtype=torch.float32, quantization_config=config)


def embeddings(model, inputs):
    mask = inputs["attention_mask"].unsqueeze(-1)
    with torch.no_grad():
        return (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)


def test_sentence_embeddings(reference, int8):
    model, inputs = reference
    cosines = torch.cosine_similarity(embeddings(model, inputs), embeddings(int8, inputs))
    assert cosines.mean() >= 0.99 and cosines.min() >= 0.97  # the least is the one-word text


@pytest.mark.parametrize("activation", ["static", "dynamic"])
def test_every_layer_alone(reference, minilm, activation):
    """Each quantized Linear against the float one, on the input that the float model gives it: so without folding."""
    model, inputs = reference
    config = SmoothQuantConfig(activation=activation, fold=False)
    int8 = AutoModel.from_pretrained(minilm, dtype=torch.float32, quantization_config=config)
    seen = {}

    def record(name):
        def hook(module, args, output):
            seen[name] = (args[0], output)

        return hook

    names = [name for name, module in int8.named_modules() if isinstance(module, Int8Linear)]
    handles = [model.get_submodule(name).register_forward_hook(record(name)) for name in names]
    embeddings(model, inputs)
    for handle in handles:
        handle.remove()
    assert len(names) == 6 * 6 + 1
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        for name in names:
            x, y = seen[name]
            got = int8.get_submodule(name)(x)
            keep = real if y.ndim == 3 else slice(None)
            assert sqnr_db(y[keep], got[keep]) > 23, name


def test_values_take_the_factors_of_the_attention_output(int8):
    """In BERT nothing else folds: its norms feed the residual, too."""
    groups = quantization_report(int8).groups
    folded = {group.names[0]: group.folded_into for group in groups if group.folded_into}
    layers = [f"encoder.layer.{index}.attention" for index in range(6)]
    assert folded == {f"{layer}.output.dense": f"{layer}.self.value" for layer in layers}


def test_q_k_v_share_their_factors(int8):
    for layer in int8.encoder.layer:
        q, k, v = (getattr(layer.attention.self, name).weight for name in ("query", "key", "value"))
        assert torch.equal(q.act_pre_scale, k.act_pre_scale) and torch.equal(q.act_pre_scale, v.act_pre_scale)
        assert q.act_quant_scale is None or (q.act_quant_scale == k.act_quant_scale).all()


def test_size(reference, int8):
    embedding_bytes = sum(parameter.nbytes for parameter in reference[0].embeddings.parameters())
    floats, ints = reference[0].get_memory_footprint(), int8.get_memory_footprint()
    assert (ints - embedding_bytes) / (floats - embedding_bytes) < 0.27
