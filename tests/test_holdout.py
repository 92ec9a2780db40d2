import pytest
import torch

from hf_smoothquant.calibration.holdout import MAX_SAMPLES, HoldOut


def test_every_eighth_sample_whatever_the_batches():
    ids = torch.arange(40).reshape(20, 2)
    for size in (1, 3, 8, 20):
        hold_out, rest = HoldOut(), []
        for batch in ids.split(size):
            left = hold_out.split({"input_ids": batch, "attention_mask": torch.ones_like(batch), "use_cache": False})
            if left is not None:
                assert left["use_cache"] is False and len(left["attention_mask"]) == len(left["input_ids"])
                rest += left["input_ids"].tolist()
        held = [sample["input_ids"].tolist() for sample in hold_out.samples]
        assert held == [[[14, 15]], [[30, 31]]]
        assert rest == [row for index, row in enumerate(ids.tolist()) if index not in (7, 15)]


def test_the_samples_are_spread_over_the_data():
    hold_out = HoldOut()
    hold_out.split({"input_ids": torch.arange(8 * 20).reshape(-1, 1)})
    held = [sample["input_ids"].item() for sample in hold_out.samples]
    assert len(held) <= MAX_SAMPLES and held[0] == 7 and held[-1] > 8 * 20 * 0.75


def test_too_few():
    hold_out = HoldOut()
    hold_out.split({"input_ids": torch.ones(7, 2)})
    with pytest.raises(ValueError, match=r"there were only 7.*more samples"):
        _ = hold_out.samples
