import os
import subprocess
import sys

import pytest
import torch
from conftest import TEXTS, sqnr_db
from transformers import AutoModelForQuestionAnswering

import hf_smoothquant
from hf_smoothquant import SmoothQuantConfig, cpu
from hf_smoothquant.inductor.coverage import FusionCoverage
from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import float_product


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("static", [True, False])
def test_float_product_equals_torchao(static, dtype):
    """To the bit: with 200 inputs every sum of int8 products is exact in float32."""
    x = torch.randn(2, 9, 200, dtype=dtype)
    factors = torch.rand(200) + 0.5
    scale = (x.float() / factors).abs().max() / 127 if static else None
    int8 = quantize_weight(torch.randn(48, 200, dtype=dtype), factors, scale)
    bias = torch.randn(48, dtype=dtype)
    assert torch.equal(float_product(x, int8, bias), torch.nn.functional.linear(x, int8, bias))
    assert torch.equal(float_product(x, int8, None), torch.nn.functional.linear(x, int8, None))


def test_the_largest_values():
    """Inputs and weights at the ends of the range: 16-bit sums of two products would overflow."""
    x = torch.full((1, 4, 96), 3.0)
    int8 = quantize_weight(torch.full((32, 96), -2.0), None, torch.tensor(3.0 / 127))
    linear = torch.nn.Linear(96, 32, bias=False)
    hf_smoothquant.linear.Int8Linear.adopt(linear).weight = torch.nn.Parameter(int8, requires_grad=False)
    assert torch.allclose(linear(x), torch.full((1, 4, 32), -3.0 * 2 * 96), rtol=1e-6)


def test_compiled_without_vnni(tiny_bert, monkeypatch, transformers_warnings):
    monkeypatch.setattr(cpu, "SATURATES", True)
    config = SmoothQuantConfig(dataset=TEXTS)
    model = AutoModelForQuestionAnswering.from_pretrained(tiny_bert, dtype=torch.float32, quantization_config=config)
    compiled = hf_smoothquant.compile(model)
    ids = torch.arange(5, 25).reshape(2, 10)
    with torch.no_grad():
        assert sqnr_db(model(ids).start_logits, compiled(ids).start_logits) > 60
    assert compiled.fusion_coverage.fused == 0 and compiled.fusion_coverage.unfused == []


def test_a_kernel_that_saturates_is_refused(monkeypatch):
    monkeypatch.setattr(cpu, "SATURATES", True)
    graph = torch.fx.Graph()
    product = graph.call_function(torch.ops.onednn.qlinear_pointwise.default, ())
    product.meta["nn_module_stack"] = {"1": ("L['self'].dense", torch.nn.Linear)}
    graph.output(product)
    with pytest.raises(RuntimeError, match="dense became an int8 kernel, whose sums saturate"):
        FusionCoverage().inspect(graph)


@pytest.mark.skipif(cpu.SATURATES, reason="no VNNI")
@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])  # with the latter only products of u8 saturate
def test_onednn_held_down_is_noticed(isa):
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": isa}
    code = "from hf_smoothquant import cpu; print(cpu.SATURATES)"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"


def test_the_probe_inside_from_pretrained():
    """There tensors are made on the meta device: nothing could be multiplied, and no Linear would be fused later."""
    code = """
import torch
torch.set_default_dtype(torch.bfloat16)
with torch.device("meta"):
    from hf_smoothquant import cpu
print(cpu.SATURATES)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(cpu.SATURATES)


def test_the_probe_agrees_with_the_cpu():
    if torch.cpu._is_vnni_supported() and "ONEDNN_MAX_CPU_ISA" not in os.environ:
        assert not cpu.SATURATES
