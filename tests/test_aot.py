"""One package per kind of activation, made once and asked for several things."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import SMALL, TEXTS, sqnr_db
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_outputs import QuestionAnsweringModelOutput

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu
from hf_smoothquant.aot.machine import Machine
from hf_smoothquant.aot.manifest import MANIFEST, PACKAGE, Manifest
from hf_smoothquant.conversion import quantize_model
from hf_smoothquant.linear import Int8Linear

FUSED = 0 if cpu.SATURATES else 12
RANGES = {"batch": (1, 8), "length": (1, 128)}


def inputs_of(batch, length):
    ids = torch.randint(5, 64, (batch, length))
    mask = torch.ones_like(ids)
    mask[:1, (length + 1) // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def logits(output):
    return torch.stack([output.start_logits, output.end_logits])


@pytest.fixture(scope="module")
def model(tiny_bert):
    config = SmoothQuantConfig(dataset=TEXTS)
    return AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32, quantization_config=config)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A package of the static model, with batch and length dynamic, exported from an example of batch 1."""
    folder = tmp_path_factory.mktemp("package")
    manifest = hf_smoothquant.export(model, inputs_of(1, 12), folder, dynamic=RANGES)
    assert manifest == Manifest.load(folder)
    return folder


@pytest.fixture(scope="module")
def package(folder):
    return hf_smoothquant.load(folder)


def test_every_linear_is_fused(package, model):
    linears = [module for module in model.modules() if isinstance(module, Int8Linear)]
    assert (package.manifest.fused, package.manifest.unfused) == (FUSED, ()) and len(linears) == 12
    assert all(ratio > 60 for ratio in package.manifest.sqnr_db.values())
    assert list(package.manifest.sqnr_db) == ["batch 1, length 12", "batch 1, length 128", "batch 1, length 1"]


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 77), (8, 128), (3, 5), (2, 12)])
def test_outputs_equal_the_models(package, model, batch, length):
    inputs = inputs_of(batch, length)
    with torch.no_grad():
        reference = model(**inputs)
    output = package(**inputs)
    assert type(output) is QuestionAnsweringModelOutput
    assert sqnr_db(logits(reference), logits(output)) > 60


def test_strides_of_the_inputs_do_not_matter(package, model):
    inputs = inputs_of(4, 6)
    transposed = {name: tensor.t().contiguous().t() for name, tensor in inputs.items()}
    assert not transposed["input_ids"].is_contiguous()
    assert torch.equal(logits(package(**transposed)), logits(package(**inputs)))


def test_a_fresh_process_compiles_nothing(folder, package, tmp_path):
    inputs = inputs_of(2, 9)
    torch.save((inputs, logits(package(**inputs))), tmp_path / "expected.pt")
    code = """
import sys, torch, hf_smoothquant
def no_compiler(event, arguments):
    assert event != "subprocess.Popen", arguments
sys.addaudithook(no_compiler)
inputs, expected = torch.load(sys.argv[2])
package = hf_smoothquant.load(sys.argv[1])
output = package(**inputs)
assert torch.equal(torch.stack([output.start_logits, output.end_logits]), expected)
assert not torch._dynamo.utils.counters["stats"]
print(package.config.model_type)
"""
    command = [sys.executable, "-c", code, folder, tmp_path / "expected.pt"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "bert"


def test_config_and_tokenizer_are_in_the_folder(folder, package):
    tokens = AutoTokenizer.from_pretrained(folder)(["who built the bridge", "rain"], padding=True, return_tensors="pt")
    output = package(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    assert output.start_logits.shape == tokens["input_ids"].shape
    assert package.config.quantization_config["quant_method"] == "smoothquant"
    assert "BertForQuestionAnswering(input_ids: int64['batch', 'length']" in repr(package)
    assert "batch 1 to 8, length 1 to 128" in repr(package)


def test_the_model_stays_as_it_was(folder, model):
    assert all(isinstance(module, Int8Linear) for name, module in model.named_modules() if name.endswith("dense"))
    assert not any("parametrizations" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x | inputs_of(9, 4), r"batch of 9 is outside the range 1 to 8.*dynamic=\{\"batch\""),
        (lambda x: x | inputs_of(1, 129), "length of 129 is outside the range 1 to 128"),
        (lambda x: x | inputs_of(0, 4), "batch of 0 is outside"),
        (lambda x: x | {"token_type_ids": x["input_ids"]}, "token_type_ids is not among them.*export again"),
        (lambda x: {"input_ids": x["input_ids"]}, "input_ids, attention_mask: attention_mask is missing"),
        (lambda x: x | {"input_ids": x["input_ids"].int()}, r"input_ids is torch.int32, and .* takes torch.int64"),
        (lambda x: x | {"input_ids": [[5, 6]]}, "is a list, and must be a tensor.*return_tensors"),
        (
            lambda x: x | {"attention_mask": x["attention_mask"][:, :3]},
            "attention_mask has a length of 3, and input_ids",
        ),
        (
            lambda x: x | {"input_ids": x["input_ids"][0]},
            r"input_ids is \[4\], and the package takes \[batch, length\]",
        ),
        (
            lambda x: x | {"input_ids": x["input_ids"].to("meta")},
            "input_ids is on meta, and the package runs on the CPU",
        ),
    ],
)
def test_wrong_inputs_are_refused(package, change, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        package(**change(inputs_of(2, 4)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda m: m["machine"].update(torch="2.12.1"), RuntimeError, r"compiled with torch 2\.12\.1.*pip install"),
        (
            lambda m: m["machine"]["capabilities"].append("amx_int9"),
            RuntimeError,
            "lacks instructions.*amx_int9.*export",
        ),
        (lambda m: m["machine"].update(architecture="riscv"), RuntimeError, "compiled for Linux on riscv"),
        (lambda m: m.update(format_version=2), ValueError, "format 2.*pip install --upgrade"),
        (lambda m: m.pop("signature"), ValueError, "damaged .KeyError: 'signature'"),
        (lambda m: m.update(package_bytes=7), ValueError, "manifest says 7: it was cut short or exchanged"),
    ],
)
def test_packages_that_do_not_fit_are_refused(folder, tmp_path, change, error, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    content = json.loads((copy / MANIFEST).read_text())
    change(content)
    (copy / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(error, match=f"(?s){message}"):
        hf_smoothquant.load(copy)


def test_int8_kernels_are_refused_where_they_saturate():
    here = Machine.here()
    with pytest.raises(RuntimeError, match=r"would saturate here.*ONEDNN_MAX_CPU_ISA"):
        replace(here, int8_kernels=True).check_runs_on(replace(here, int8_kernels=False))
    replace(here, int8_kernels=False).check_runs_on(replace(here, int8_kernels=True))
    replace(here, capabilities=()).check_runs_on(here)


def test_another_number_of_threads_is_warned_about(folder, transformers_warnings):
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        hf_smoothquant.load(folder)
    finally:
        torch.set_num_threads(threads)
    assert f"compiled for {threads} threads, and this process has {threads + 1}" in transformers_warnings.text


def test_a_checkpoint_is_no_package(tiny_bert, model, folder):
    with pytest.raises(FileNotFoundError, match=r"has no manifest\.json.*from_pretrained"):
        hf_smoothquant.load(tiny_bert)
    with pytest.raises(ValueError, match="holds a checkpoint"):
        hf_smoothquant.export(model, inputs_of(1, 4), tiny_bert)


def test_a_failed_export_keeps_the_old_package(folder, model, monkeypatch):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fails(program, package_path):
        Path(package_path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fails)
    with pytest.raises(KeyboardInterrupt):
        hf_smoothquant.export(model, inputs_of(2, 4), folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before and PACKAGE in before


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ({"length": (1, 200)}, "The model itself fails on inputs of length 200"),
        ({"length": (4, 2)}, r"dynamic\['length'\] must be two whole numbers"),
        ({"width": (1, 2)}, "None of the inputs input_ids, attention_mask has a dimension 'width'"),
        ({"length": (5, 9)}, "length of 4 is outside the range 5 to 9"),
    ],
)
def test_wrong_ranges_are_refused(model, tmp_path, dynamic, message):
    with pytest.raises(ValueError, match=message):
        hf_smoothquant.export(model, inputs_of(2, 4), tmp_path, dynamic=dynamic)
    assert list(tmp_path.iterdir()) == []


def test_default_ranges(model):
    from hf_smoothquant.aot.ranges import size_ranges

    assert size_ranges(model, inputs_of(2, 4), None) == {"batch": (1, 128), "length": (1, 130)}
    assert size_ranges(model, {"pixel_values": torch.ones(2, 3, 8, 8)}, True) == {"batch": (1, 128)}
    assert size_ranges(model, inputs_of(2, 4), False) == {}
    assert size_ranges(model, inputs_of(2, 4), {"batch": (2, 2), "length": (1, 9)}) == {"length": (1, 9)}


def test_a_decoder_whose_factors_are_folded(tmp_path):
    """Query, key and value then quantize alike, and a cache is no output of a package."""
    config = LlamaConfig(
        vocab_size=64, num_key_value_heads=2, initializer_range=0.2, **SMALL | {"num_hidden_layers": 1}
    )
    model = LlamaForCausalLM(config).eval()
    inputs = inputs_of(2, 10)
    quantize_model(model, SmoothQuantConfig(dataset=[inputs]))
    assert model.model.layers[0].self_attn.q_proj.weight.act_pre_scale is None
    manifest = hf_smoothquant.export(model, inputs, tmp_path, dynamic={"length": (1, 64)})
    assert (manifest.fused, manifest.unfused) == (FUSED and 7, ())
    package = hf_smoothquant.load(tmp_path)
    output = package(**inputs)
    assert list(output) == ["logits"] and package.config.use_cache and model.config.use_cache
    with torch.no_grad():
        assert sqnr_db(model(**inputs).logits, output.logits) > 60


@pytest.mark.slow
def test_dynamic_activations_autocast_and_fixed_sizes(tiny_bert, tmp_path):
    config = SmoothQuantConfig(dataset=TEXTS, activation="dynamic", min_features=1)
    model = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32, quantization_config=config)
    inputs = inputs_of(2, 10)
    manifest = hf_smoothquant.export(model, inputs, tmp_path, dynamic=False, autocast=torch.bfloat16)
    assert (manifest.fused, manifest.unfused) == (FUSED and 13, ())
    package = hf_smoothquant.load(tmp_path)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert sqnr_db(logits(model(**inputs)), logits(package(**inputs))) > 20
    with pytest.raises(ValueError, match=r"input_ids is \[2, 11\], and the package takes \[2, 10\]"):
        package(**inputs_of(2, 11))
