import copy
import importlib
import json
import multiprocessing
import operator
import pickle
import subprocess
import sys

import pytest
import torch
from conftest import SMALL, TEXTS, sqnr_db
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
    pipeline,
)
from transformers.models.bert.modeling_bert import BertLayer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, versions
from hf_smoothquant.linear import Int8Linear


def int8_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, Int8Linear)]


def quantized(folder, auto=AutoModelForQuestionAnswering, dtype=torch.float32, **arguments):
    arguments.setdefault("dataset", TEXTS)
    return auto.from_pretrained(folder, dtype=dtype, quantization_config=SmoothQuantConfig(**arguments))


@pytest.fixture
def inputs(tiny_bert):
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    return tokenizer(["who built it"] * 2, ["masons built the bridge", "a fox"], padding=True, return_tensors="pt")


def logits(model, inputs):
    with torch.no_grad():
        output = model(**inputs)
    return torch.stack([output.start_logits, output.end_logits])


def test_registration_is_idempotent():
    for module in ("hf_smoothquant.quantizer", "hf_smoothquant"):
        importlib.reload(sys.modules[module])
    assert AUTO_QUANTIZATION_CONFIG_MAPPING["smoothquant"] is hf_smoothquant.SmoothQuantConfig
    assert AUTO_QUANTIZER_MAPPING["smoothquant"] is sys.modules["hf_smoothquant.quantizer"].SmoothQuantHfQuantizer


def test_import_brings_nothing_heavy_of_its_own():
    code = (
        "import sys, transformers.quantizers.auto; before = set(sys.modules); import hf_smoothquant; "
        "new = {name.split('.')[0] for name in set(sys.modules) - before}; "
        "print(sorted(new & {'datasets', 'evaluate', 'accelerate', 'torch', 'sklearn', 'pandas', 'matplotlib'}), "
        "'torch._inductor.compile_fx' in set(sys.modules) - before)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[] False"


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_quantized_model_is_close_to_float(tiny_bert, inputs, activation, dtype):
    model = quantized(tiny_bert, dtype=dtype, activation=activation)
    assert type(model) is BertForQuestionAnswering and not model.training and model.is_quantized
    assert model.dtype == dtype and len(int8_names(model)) == 12
    reference = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    assert sqnr_db(logits(reference, inputs), logits(model, inputs)) > (12 if activation == "static" else 20)


def test_dtype_auto_keeps_the_checkpoints(save_tiny, tiny_config):
    folder = save_tiny(BertForQuestionAnswering(tiny_config), torch.bfloat16)
    assert quantized(folder, dtype="auto").dtype == torch.bfloat16


def test_the_users_config_is_not_changed(tiny_bert):
    config = SmoothQuantConfig(dataset=TEXTS)
    model = AutoModel.from_pretrained(tiny_bert, quantization_config=config)
    assert config.dataset is TEXTS and config.calibration is None
    saved = model.config.quantization_config
    assert saved.dataset is None and saved.calibration["num_samples"] == len(TEXTS)
    assert model.hf_quantizer.quantization_config is saved


def test_footprint_counts_int8_weights_as_bytes(tiny_bert):
    model = quantized(tiny_bert)
    floats = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    weights = 2 * (4 * 64 * 64 + 2 * 64 * 128)
    rows, columns = 2 * (5 * 64 + 128), 2 * (4 * 64 + 128)  # the factors of the attention's output are folded
    static_scales = 12
    expected = floats.get_memory_footprint() - 3 * weights + 4 * (rows + columns + static_scales)
    assert model.get_memory_footprint() == expected
    buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert model.get_memory_footprint(return_buffers=False) == expected - buffers


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies(tiny_bert, inputs, clone):
    model = quantized(tiny_bert)
    twin = clone(model)
    assert torch.equal(logits(twin, inputs), logits(model, inputs))
    assert twin.get_memory_footprint() == model.get_memory_footprint() and twin.get_memory_footprint.model is twin


def test_a_spawned_process_gives_the_same(tiny_bert, inputs):
    model = quantized(tiny_bert).requires_grad_(False)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        output = pool.apply(operator.methodcaller("forward", **inputs), (model,))
    assert torch.equal(torch.stack([output.start_logits, output.end_logits]), logits(model, inputs))


def test_print_and_pipeline(save_tiny, tiny_config):
    tiny_bert = save_tiny(BertForSequenceClassification(tiny_config))
    model = quantized(tiny_bert, AutoModelForSequenceClassification)
    assert "Int8Linear(in_features=64, out_features=128, bias=True, activation=static" in str(model)
    classify = pipeline("text-classification", model=model, tokenizer=AutoTokenizer.from_pretrained(tiny_bert))
    assert [0 <= result["score"] <= 1 for result in classify(["who built it", "masons"])] == [True, True]


def test_dequantize(tiny_bert, inputs):
    reference = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32)
    model = quantized(tiny_bert).dequantize()
    assert not int8_names(model) and not hasattr(model.config, "quantization_config")
    assert sqnr_db(logits(reference, inputs), logits(model, inputs)) > 28
    assert model.get_memory_footprint() == reference.get_memory_footprint()


def test_dequantize_after_saving_and_to_another_dtype(tiny_bert, inputs, tmp_path):
    model = quantized(tiny_bert)
    model.save_pretrained(tmp_path)
    assert model.dequantize().dtype == torch.float32
    again = AutoModelForQuestionAnswering.from_pretrained(tmp_path).dequantize(dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    assert sqnr_db(logits(model, inputs), logits(again, inputs)) > 20


def test_dtypes_that_cannot_work(tiny_bert):
    with pytest.raises(ValueError, match=r"not torch\.float64"):
        quantized(tiny_bert, dtype=torch.float64)


def test_tied_decoder_survives_and_saves(save_tiny, tiny_config, tmp_path):
    model = quantized(save_tiny(BertForMaskedLM(tiny_config)), AutoModelForMaskedLM)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert "cls.predictions.transform.dense" in int8_names(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert again.cls.predictions.decoder.weight is again.bert.embeddings.word_embeddings.weight
    ids = torch.randint(5, 64, (2, 7))
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)


def test_albert_shared_layer_is_quantized_once(save_tiny, tmp_path):
    config = AlbertConfig(vocab_size=64, embedding_size=32, max_position_embeddings=130, initializer_range=0.2, **SMALL)
    model = quantized(save_tiny(AlbertModel(config)), AutoModel)
    assert len(int8_names(model)) == 8  # mapping-in, q, k, v, out, two of the FFN, pooler: one layer for two
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    ids = torch.randint(5, 64, (2, 7))
    with torch.no_grad():
        assert torch.equal(model(ids).last_hidden_state, again(ids).last_hidden_state)


def test_one_weight_in_two_linears_stays_one(save_tiny, tiny_config):
    class Sharing(BertForQuestionAnswering):
        def __init__(self, config):
            super().__init__(config)
            first, second = self.bert.encoder.layer
            second.intermediate.dense.weight = first.intermediate.dense.weight

    from hf_smoothquant.conversion import quantize_model

    model = Sharing(tiny_config).eval()
    model.name_or_path = str(save_tiny(BertForQuestionAnswering(tiny_config)))
    ids = torch.randint(5, 64, (2, 7))
    with torch.no_grad():
        reference = model(ids).start_logits
        quantize_model(model, SmoothQuantConfig(dataset=TEXTS))
        first, second = model.bert.encoder.layer
        assert second.intermediate.dense.weight is first.intermediate.dense.weight
        assert sqnr_db(reference, model(ids).start_logits) > 10


def test_distilbert_without_use_cache(save_tiny):
    config = DistilBertConfig(
        vocab_size=64, dim=64, hidden_dim=128, n_layers=2, n_heads=4, max_position_embeddings=130, num_labels=3
    )
    folder = save_tiny(DistilBertForSequenceClassification(config))
    model = quantized(folder, AutoModelForSequenceClassification)
    assert len(int8_names(model)) == 2 * 6 + 1 and "classifier" not in int8_names(model)


@pytest.mark.parametrize("activation", ["static", "dynamic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_t5_with_gated_gelu(save_tiny, tmp_path, dtype, activation):
    """`wo` stays in float, and in float32 in a float16 model: there the product of gate and up has giant values."""
    sizes = {"vocab_size": 64, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = T5Config(feed_forward_proj="gated-gelu", decoder_start_token_id=0, **sizes)
    floats = T5ForConditionalGeneration(config).eval()
    blocks = [*floats.encoder.block, *floats.decoder.block]
    with torch.no_grad():
        for block in blocks:
            block.layer[-1].DenseReluDense.wi_1.weight[3] *= 3000
            block.layer[-1].DenseReluDense.wo.weight[:, 3] /= 3000
    folder = save_tiny(copy.deepcopy(floats))
    ids = torch.arange(5, 25).reshape(2, 10)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "decoder_input_ids": ids[:, :6]}
    model = quantized(folder, T5ForConditionalGeneration, dtype, activation=activation, dataset=[inputs])
    assert sum(name.endswith((".wi_0", ".wi_1")) for name in int8_names(model)) == 8
    model.save_pretrained(tmp_path)
    again = T5ForConditionalGeneration.from_pretrained(tmp_path)
    for one in (model, again):
        weight = one.encoder.block[0].layer[-1].DenseReluDense.wo.weight
        assert type(weight) is torch.nn.Parameter
        assert weight.dtype == (torch.bfloat16 if dtype == torch.bfloat16 else torch.float32)
    with torch.no_grad():
        reference, logits, reloaded = (one(**inputs).logits for one in (floats, model, again))
    assert sqnr_db(reference, logits) > 25 and torch.equal(logits, reloaded)


def test_unreached_linears_stay_float_and_are_named(save_tiny, tiny_config, transformers_warnings):
    model = BertForQuestionAnswering(tiny_config)
    folder = save_tiny(model)

    class Unused(BertForQuestionAnswering):
        def __init__(self, config):
            super().__init__(config)
            self.spare = torch.nn.Linear(64, 64)

    int8 = quantized(folder, Unused)
    assert "spare" not in int8_names(int8) and len(int8_names(int8)) == 12
    assert "never reached them: spare." in transformers_warnings.text


def test_nan_batch_leaves_no_quantized_model(tiny_bert):
    from hf_smoothquant.conversion import quantize_model

    model = BertForQuestionAnswering.from_pretrained(tiny_bert)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[7] = float("nan")
    with pytest.raises(ValueError, match=r"layer\.0\.attention\.self\.query' has NaN"):
        quantize_model(model, SmoothQuantConfig(dataset=[torch.tensor([[5, 6]]), torch.tensor([[7, 8]])]))
    assert not int8_names(model)


def test_ctrl_c_in_calibration_leaves_no_state(tiny_bert):
    """In a forward pass: the same call works afterwards, with the same config object."""

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    config = SmoothQuantConfig(dataset=TEXTS)
    arguments = {"quantization_config": config, "dtype": torch.float32}
    expected = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BertLayer, "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            AutoModelForQuestionAnswering.from_pretrained(tiny_bert, **arguments)
    assert torch.is_grad_enabled() and torch.get_default_dtype() == torch.float32
    assert config == SmoothQuantConfig(dataset=TEXTS) and config.dataset is TEXTS and config.calibration is None
    again = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, **arguments)
    ids = torch.arange(5, 25).reshape(2, 10)
    assert torch.equal(again(ids).start_logits, expected(ids).start_logits)


def test_nothing_to_convert(tiny_bert):
    with pytest.raises(ValueError, match=r"no Linear to convert.*excluded by"):
        quantized(tiny_bert, modules_to_not_convert=["bert", "qa_outputs"])


def test_quantizing_twice_is_refused(tiny_bert, tmp_path):
    quantized(tiny_bert).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"quantized already.*'smoothquant'"):
        quantized(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"quantized already.*'gptq'"):
        quantized(tmp_path)


@pytest.mark.parametrize(
    ("device_map", "says"),
    [
        ({"bert": "cpu", "qa_outputs": "disk"}, "whole model on one device"),
        ({"bert": "cpu", "qa_outputs": "meta"}, "whole model on one device"),
        ("cuda", "no CUDA device"),
        ({"": "cuda:0"}, "no CUDA device"),
    ],
)
def test_devices_that_cannot_work(tiny_bert, device_map, says):
    if says == "no CUDA device" and torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ValueError, match=says):
        AutoModel.from_pretrained(tiny_bert, quantization_config=SmoothQuantConfig(), device_map=device_map)


@pytest.mark.parametrize("device_map", ["cpu", {"": "cpu"}, "auto"])
def test_one_device_works(tiny_bert, device_map):
    config = SmoothQuantConfig(dataset=TEXTS)
    model = AutoModel.from_pretrained(tiny_bert, quantization_config=config, device_map=device_map)
    assert len(int8_names(model)) == 13 - (not hasattr(model.pooler, "dense"))


def test_versions_outside_the_range_are_named(tiny_bert, monkeypatch):
    monkeypatch.setitem(versions.SUPPORTED, "torchao", ">=99")
    with pytest.raises(ImportError, match=r"torchao 0\.\d+\.\d+ \(supported: >=99\).*pip install 'torchao>=99'"):
        quantized(tiny_bert)


def test_versions_are_those_of_the_package_metadata():
    from importlib.metadata import requires

    from packaging.requirements import Requirement

    required = {req.name: req.specifier for req in map(Requirement, requires("hf_smoothquant")) if not req.marker}
    for package, supported in versions.SUPPORTED.items():
        assert required[package] == versions.SpecifierSet(supported)
