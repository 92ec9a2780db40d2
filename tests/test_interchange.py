"""Checkpoints for stock transformers and torchao, read without this package."""

import subprocess
import sys

import pytest
import torch
from architectures import text_batch
from safetensors import safe_open
from test_decoders import DECODERS
from test_encoders import ENCODERS
from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
from torchao.quantization import Int8Tensor
from transformers import AutoModel

from hf_smoothquant.interchange import save_torchao
from hf_smoothquant.linear import Int8Linear

STOCK = """
import sys, torch, transformers
folder, model_class = sys.argv[1:]
model = getattr(transformers, model_class).from_pretrained(folder).eval()
inputs = torch.load(f"{folder}/inputs.pt")
with torch.no_grad():
    values = [value for value in model(**inputs).to_tuple() if isinstance(value, torch.Tensor)]
assert not any(name.startswith("hf_smoothquant") for name in sys.modules)
torch.save(values, f"{folder}/outputs.pt")
"""


def quantized(architecture, folder, **arguments):
    architecture.build().save_pretrained(folder / "float")
    return architecture.quantize(folder / "float", **arguments)


@pytest.mark.parametrize("architecture", [ENCODERS["BERT, question answering"], DECODERS["Llama"]])
def test_stock_transformers_loads_it(architecture, tmp_path):
    model = quantized(architecture, tmp_path, activation="dynamic")
    config = model.config.quantization_config
    save_torchao(model, tmp_path / "int8", max_shard_size="200KB")
    assert model.config.quantization_config is config
    torch.save(text_batch(9), tmp_path / "int8" / "inputs.pt")
    command = [sys.executable, "-c", STOCK, tmp_path / "int8", architecture.model_class.__name__]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert "MISSING" not in run.stderr and "UNEXPECTED" not in run.stderr
    theirs = torch.load(tmp_path / "int8" / "outputs.pt")
    ours = architecture.outputs(model)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="static activation scales"):
        save_torchao(quantized(ENCODERS["BERT, question answering"], tmp_path / "bert"), tmp_path / "int8")
    with pytest.raises(ValueError, match="is a Conv1D"):
        save_torchao(quantized(DECODERS["GPT-2"], tmp_path / "gpt2", activation="dynamic"), tmp_path / "int8")
    with pytest.raises(ValueError, match="has no int8 Linear"):
        save_torchao(AutoModel.from_pretrained(tmp_path / "bert" / "float"), tmp_path / "int8")
    assert not (tmp_path / "int8").exists()


@pytest.mark.parametrize("fold", [True, False])
def test_fused_loading_as_vllm_does_it(fold, tmp_path):
    """One fused parameter for query, key and value: each is narrowed out of it and copied into.

    That is right only where the three have the same smoothing factors, since a part shares those of the whole.
    """
    model = quantized(DECODERS["Qwen3"], tmp_path, activation="dynamic", fold=fold)
    save_torchao(model, tmp_path / "int8")
    with safe_open(tmp_path / "int8" / "model.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        weights, rest = unflatten_tensor_state_dict(tensors, file.metadata())
    assert not rest
    prefix = "model.layers.0.self_attn."
    parts = [weights[f"{prefix}{name}_proj.weight"] for name in "qkv"]
    assert all(type(part) is Int8Tensor and (part.act_pre_scale is None) == fold for part in parts)
    fused = Int8Tensor(
        torch.zeros(sum(map(len, parts)), 64, dtype=torch.int8),
        torch.zeros(sum(map(len, parts)), 1),
        parts[0].block_size,
        parts[0].dtype,
        act_pre_scale=None if fold else torch.ones(64),
        act_quant_kwargs=parts[0].act_quant_kwargs,
    )
    start = 0
    for part in parts:
        fused.narrow(0, start, len(part)).copy_(part)
        start += len(part)
    x = torch.randn(3, 7, 64)
    separate = [model.get_submodule(f"{prefix}{name}_proj") for name in "qkv"]
    assert all(isinstance(linear, Int8Linear) for linear in separate)
    expected = torch.cat([linear(x) for linear in separate], -1)
    assert torch.equal(torch.nn.functional.linear(x, fused), expected)
