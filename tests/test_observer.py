import pytest
import torch
from torch import nn

from hf_smoothquant.calibration.observer import SAMPLE_ROWS, observe


class Attention(nn.Module):
    """Three Linears on one tensor, one behind them, one that is never called."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out, self.unused = (nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        return self.out(self.q(x) + self.k(x) * self.v(input=x))


def run(model, *batches):
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    with torch.no_grad(), observe(linears) as observer:
        for x, mask in batches:
            observer.start_batch({} if mask is None else {"attention_mask": mask})
            model(x)
    return observer


def test_linears_on_one_tensor_form_a_group():
    observer = run(Attention(), (torch.randn(2, 4, 8), None), (torch.randn(1, 9, 8), None))
    assert [group.names for group in observer.groups()] == [["q", "k", "v"], ["out"]]
    assert observer.unreached() == ["unused"]


def test_linears_that_once_read_another_tensor_are_no_group():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) + self.b(x if len(x) == 1 else x * 2)

    same, other = (torch.randn(1, 4, 8), None), (torch.randn(2, 4, 8), None)
    assert [group.names for group in run(Sometimes(), same, same).groups()] == [["a", "b"]]
    assert [group.names for group in run(Sometimes(), same, other).groups()] == [["a"], ["b"]]


def test_a_tensor_changed_in_place_is_another_input():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) + self.b(x.mul_(100))

    x = torch.randn(1, 4, 8)
    expected = x.abs().amax((0, 1))
    first, second = run(InPlace(), (x, None)).groups()
    torch.testing.assert_close(first.absmax, expected)
    torch.testing.assert_close(second.absmax, expected * 100)


def test_absmax_over_batches_of_different_lengths():
    batches = [torch.randn(2, 16, 8), torch.randn(3, 9, 8), -10 * torch.rand(1, 1, 8)]
    group = run(Attention(), *((x, None) for x in batches)).groups()[0]
    expected = torch.cat([x.reshape(-1, 8) for x in batches]).abs().amax(0)
    assert torch.equal(group.absmax, expected)
    assert group.ndim == 3


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("flat", [False, True])
def test_padding_never_counts(side, flat):
    x = torch.randn(2, 4, 8)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    mask = mask if side == "right" else mask.flip(1)
    real = x[mask.bool()].abs().amax(0)
    x[~mask.bool()] = 1e6
    group = run(Attention(), (x.reshape(8, 8) if flat else x, mask)).groups()[0]
    assert torch.equal(group.absmax, real)


def test_all_choices_of_a_multiple_choice_mask():
    mask = torch.ones(2, 3, 4, dtype=torch.long)
    mask[1, 2, 2:] = 0
    x = torch.randn(6, 4, 8)
    x[5, 2:] = 1e6
    assert run(Attention(), (x, mask)).groups()[0].absmax.max() < 100


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_values_are_refused_by_name(value):
    model, x = Attention(), torch.randn(1, 4, 8)
    x[0, 2, 3] = value
    with pytest.raises(ValueError, match="'q' has NaN or infinite"):
        run(model, (x, None))
    assert not any(module._forward_pre_hooks for module in model.modules())
    run(model, (x, torch.tensor([[1, 1, 0, 1]])))  # in a padded position they do no harm


def test_linears_that_share_a_weight_share_a_group():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
            self.c.weight = self.a.weight

        def forward(self, x):
            return self.c(100 * self.b(self.a(x)))

    groups = run(Shared(), (torch.randn(1, 4, 8), None)).groups()
    assert sorted(sorted(group.names) for group in groups) == [["a", "c"], ["b"]]
    assert max(group.absmax.max() for group in groups if "a" in group.names) > 10


def test_memory_does_not_grow_with_the_data():
    model = Attention()
    x = torch.randn(1, 4, 8)

    def held(observer):
        return sum(2 * one.maximum.numel() + one.sample.rows.numel() for one in observer.statistics.values())

    many = run(model, *[(x.clone(), None) for _ in range(50)])
    # Extrema of four Linears, a full sample for each of two inputs, and the first four rows of it for k and v.
    assert held(many) == 2 * 4 * 8 + 2 * SAMPLE_ROWS * 8 + 2 * 4 * 8 and len(many._seen) <= 2
    assert held(many) == held(run(model, *[(x.clone(), None) for _ in range(100)]))


def test_a_linear_that_is_never_the_first_reader_has_rows_too():
    """DeBERTa with shared attention keys: q and k also read the positions, so that v is a group of its own."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.v = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.q(x) + self.v(x) + self.q(x.flip(-1))

    groups = run(Shared(), (torch.randn(2, 4, 8), None)).groups()
    assert [group.names for group in groups] == [["q"], ["v"]]
    assert [len(group.rows) for group in groups] == [16, 8]
