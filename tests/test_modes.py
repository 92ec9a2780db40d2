import pytest

pytest.importorskip("evaluate")

from hf_smoothquant.evaluation.modes import Mode, all_modes


def test_float_modes_come_first_and_once():
    modes = all_modes(["static", "fp32", "dynamic", "bf16"], [0.5, "auto"], ["builtin", "own.tsv"], [None, 25.0])
    assert modes[:2] == [Mode("fp32"), Mode("bf16")]
    assert len(modes) == 2 + 2 * 2 * 2 * 2
    assert modes[2] == Mode("static", 0.5, "builtin") and modes[-1] == Mode("dynamic", "auto", "own.tsv", 25.0)


def test_only_int8_is_compiled():
    modes = all_modes(["fp32", "static", "saved"], [0.5], compiled=True)
    assert [(mode.kind, mode.compiled) for mode in modes] == [("fp32", False), ("static", True), ("saved", True)]


def test_unknown_mode():
    with pytest.raises(ValueError, match=r"no mode 'int4'.*fp32, bf16"):
        Mode("int4")
