"""Operations on int8 weights: each gives the value that the float weight behind it would, or an error."""

import copy
import pickle

import pytest
import torch
from conftest import sqnr_db
from torch import nn
from torch.nn.functional import linear
from torchao.quantization import Int8Tensor

from hf_smoothquant.int8 import quantize_weight
from hf_smoothquant.linear import Int8Linear
from hf_smoothquant.tensor import SmoothQuantTensor, as_torchao

N, K = 48, 64
SCALE = torch.tensor(0.035)


def weight_of(activation, rows=N):
    """Factors over two decades: a cut that leaves one out is far off."""
    factors = torch.logspace(-1, 1, K)[torch.randperm(K)]
    scale = SCALE if activation == "static" else None
    return quantize_weight(torch.randn(rows, K) * 0.1, factors, scale, act_ndim=2)


def input_of(weight, rows=7):
    """Rows that fit into the static scale once they are smoothed."""
    return torch.randn(rows, K) / weight.act_pre_scale


@pytest.fixture(params=["static", "dynamic"])
def weight(request):
    return weight_of(request.param)


def test_dequantize_undoes_smoothing(weight):
    floats = weight.qdata.float() * weight.scale * weight.act_pre_scale
    assert torch.equal(weight.dequantize(), floats)
    assert torch.equal(weight.dequantize(torch.bfloat16), floats.bfloat16())


@pytest.mark.parametrize(
    "cut",
    [
        lambda w: w[:16],
        lambda w: w[-16:],
        lambda w: w[::3],
        lambda w: w.narrow(0, 8, 16),
        lambda w: w[torch.tensor([5, 0, -1])],
        lambda w: w[[5, 0, 5]],
        lambda w: w[torch.arange(len(w)) % 2 == 0],
        lambda w: w.index_select(0, torch.tensor([7, 3])),
        lambda w: w.split(20)[2],
        lambda w: w.split([8, 40])[1],
        lambda w: w.chunk(3)[1],
        lambda w: w.tensor_split(2)[1],
        lambda w: torch.cat([w[:8], w[40:]]),
        lambda w: w[:, :],
    ],
)
def test_cut_by_rows(weight, cut):
    """The Linear of the rows gives these outputs of the whole, to the bit."""
    part, x = cut(weight), input_of(weight)
    assert isinstance(part, SmoothQuantTensor)
    assert torch.equal(part.dequantize(), cut(weight.dequantize()))
    assert torch.equal(linear(x, part), cut(linear(x, weight).T).T)


@pytest.mark.parametrize(
    "cut",
    [
        lambda w: w[:, 16:40],
        lambda w: w[..., -32:],
        lambda w: w[:, ::2],
        lambda w: w.narrow(1, 8, 16),
        lambda w: w[:, torch.tensor([63, 0, 5])],
        lambda w: w.index_select(-1, torch.tensor([1, 2, 40])),
        lambda w: w.split(32, dim=1)[1],
        lambda w: w.chunk(2, dim=-1)[0],
        lambda w: w[4:20][:, 8:24],
    ],
)
def test_cut_by_columns(weight, cut):
    """The factors are cut with the columns."""
    part, x = cut(weight), cut(input_of(weight, N))
    assert torch.equal(part.dequantize(), cut(weight.dequantize()))
    assert sqnr_db(linear(x, part.dequantize()), linear(x, part)) > 30


def test_views_share_memory(weight):
    with torch.no_grad():
        weight[8:16].qdata.fill_(1)
    assert (weight.qdata[8:16] == 1).all()


@pytest.mark.parametrize("activation", ["static", "dynamic"])
def test_tensor_parallel_by_hand(activation):
    """Rows of the first Linear and columns of the second on each of two ranks: the sum is the whole."""
    first, second = weight_of(activation, rows=K), weight_of(activation)
    x = input_of(first)
    hidden = torch.relu(linear(x, first))
    whole = linear(hidden, second)
    halves = [slice(0, K // 2), slice(K // 2, K)]
    assert torch.equal(torch.cat([torch.relu(linear(x, first[half])) for half in halves], 1), hidden)
    total = sum(linear(hidden[:, half], second[:, half]) for half in halves)
    if activation == "static":  # the same int8 numbers; only the sums of floats are rounded in another order
        torch.testing.assert_close(total, whole)
    else:  # each half has a scale of its own per token, which can only be finer
        floats = linear(hidden, second.dequantize())
        assert sqnr_db(floats, total) > sqnr_db(floats, whole) - 1


@pytest.mark.parametrize(
    "use",
    [
        lambda w: w[3],
        lambda w: w[:, 3],
        lambda w: w[torch.tensor([0]), torch.tensor([1])],
        lambda w: torch.randn(7, K) @ w.T,
        lambda w: w + 1,
        lambda w: w.view(-1),
        lambda w: torch.cat([w, w], dim=1),
        lambda w: torch.cat([w, weight_of("static")]),
        lambda w: torch.cat([w, torch.randn(N, K)]),
    ],
)
def test_the_rest_is_refused(weight, use):
    with pytest.raises(NotImplementedError, match=r"[Ii]nt8 weight|dequantize"):
        use(weight)


def test_linear_is_right_for_every_input(weight):
    """Called as torch.nn.functional.linear, too: any number of dimensions, no tokens, float16 beyond its range."""
    bias = torch.randn(N)
    module = Int8Linear.adopt(nn.Linear(K, N))
    module.weight, module.bias = nn.Parameter(weight, requires_grad=False), nn.Parameter(bias)
    x = torch.randn(2, 3, K)
    for shape in ((6, K), (2, 3, K), (1, 2, 3, K), (3, 2, 1, 1, K)):
        y = linear(x.reshape(shape), weight, bias)
        assert y.shape == (*shape[:-1], N)
        torch.testing.assert_close(y.reshape(2, 3, N), module(x))
    assert linear(x[:, :0], weight, bias=bias).shape == (2, 0, N)
    half = linear((x * 100).half(), weight, bias.half())
    assert half.dtype == torch.float16 and half.isfinite().all()


def test_to_dtype(weight):
    low = weight.to(torch.bfloat16)
    assert low.dtype == torch.bfloat16 and low.scale.dtype == low.act_pre_scale.dtype == torch.float32
    assert torch.equal(low.qdata, weight.qdata) and low.qdata.data_ptr() != weight.qdata.data_ptr()
    assert torch.equal(low.float().dequantize(), weight.dequantize())
    assert weight.to("cpu") is weight or torch.equal(weight.to("cpu").qdata, weight.qdata)
    with pytest.raises(TypeError, match=r"torch\.int32"):
        weight.to(torch.int32)
    module = nn.Linear(K, N, bias=False)
    module.weight = nn.Parameter(weight, requires_grad=False)
    module.to(torch.bfloat16)
    assert isinstance(module.weight, nn.Parameter) and module.weight.dtype == torch.bfloat16
    assert module(torch.randn(2, K).bfloat16()).dtype == torch.bfloat16


def test_state_dict(weight):
    source, target = nn.Linear(K, N), nn.Linear(K, N)
    source.weight = nn.Parameter(weight, requires_grad=False)
    target.weight = nn.Parameter(quantize_weight(torch.randn(N, K), torch.ones(K), act_ndim=2), requires_grad=False)
    if weight.act_quant_scale is not None:
        with pytest.raises(RuntimeError, match="act_quant_scale is absent in the one and"):
            target.load_state_dict(source.state_dict())
        target.load_state_dict(source.state_dict(), assign=True)
    else:
        target.load_state_dict(source.state_dict())
    x = torch.randn(3, K)
    assert torch.equal(target(x), source(x))
    with pytest.raises(RuntimeError, match="can't be copied into an int8 weight"):
        source.load_state_dict(nn.Linear(K, N).state_dict())
    with pytest.raises(RuntimeError, match="can't be copied into a float one"):
        nn.Linear(K, N).load_state_dict(source.state_dict())


def test_copies(weight, tmp_path):
    torch.save({"weight": weight}, tmp_path / "weight.pt")
    loaded = torch.load(tmp_path / "weight.pt", weights_only=True)["weight"]
    for other in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight)), weight.clone(), weight.detach(), loaded):
        assert type(other) is SmoothQuantTensor and torch.equal(other.dequantize(), weight.dequantize())


def test_as_torchao(weight):
    """What stock torchao computes with it is the same to the bit."""
    plain, x = as_torchao(weight), torch.randn(3, K)
    assert type(plain) is Int8Tensor and plain.qdata is weight.qdata
    assert torch.equal(linear(x, plain), linear(x, weight))
    assert as_torchao(x) is x


def test_no_gradients(weight):
    """Forward works with gradients on, as for any model called without no_grad; going back is refused."""
    x = torch.randn(3, K, requires_grad=True)
    y = linear(x, weight)
    assert torch.equal(y, linear(x.detach(), weight))
    with pytest.raises(RuntimeError, match="can't be trained"):
        y.sum().backward()


def test_shared_memory(weight):
    module = nn.Linear(K, N)
    module.weight = nn.Parameter(weight, requires_grad=False)
    assert not module.weight.is_shared()
    module.share_memory()
    assert module.weight.is_shared() and module.weight.qdata.is_shared() and module.weight.scale.is_shared()
    x = torch.randn(3, K)
    assert torch.equal(module(x), linear(x, weight, module.bias))
