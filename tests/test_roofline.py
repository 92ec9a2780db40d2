import pytest

from hf_smoothquant.benchmark.roofline import Gemm, Machine, amdahl, gemm_seconds, gemm_speedup, weight_bytes

MACHINE = Machine({"fp32": 1e12, "int8": 8e12}, memory_bandwidth=1e10, llc_bandwidth=1e11, llc_bytes=10**6)


@pytest.mark.parametrize(
    ("parts", "speedup"),
    [
        ([(0.885, 4.0), (0.115, 1.20)], 3.15),
        ([(0.869, 11.13), (0.131, 2.06)], 7.06),
        ([(0.727, 1.91), (0.273, 1.0)], 1.53),
    ],
)
def test_amdahl_gives_the_published_ceilings(parts, speedup):
    assert amdahl(parts) == pytest.approx(speedup, abs=0.005)


def test_shares_and_speedups_are_checked():
    with pytest.raises(ValueError, match=r"add up to 1, not 0\.9"):
        amdahl([(0.9, 2.0)])
    with pytest.raises(ValueError, match="have to be positive"):
        amdahl([(0.5, 0.0), (0.5, 1.0)])


def test_one_product_by_hand():
    gemm = Gemm(m=2, n=3, k=5)
    assert gemm.operations == 60
    assert gemm.bytes("fp32") == 4 * (10 + 15 + 6) and gemm.bytes("int8") == 10 + 15 + 4 * 6
    assert gemm.intensity("fp32") == pytest.approx(60 / 124)


def test_what_binds():
    """At one token bandwidth binds, at many arithmetic; weights that fit into the cache are read from there."""
    assert MACHINE.balance("fp32", 10**7) == 100 and MACHINE.balance("fp32", 10**5) == 10
    small, large = Gemm(1, 100, 100), Gemm(10**5, 1000, 1000)
    assert small.seconds("fp32", MACHINE, 10**5) == pytest.approx(4 * (100 + 10**4 + 100) / 1e11)
    assert large.seconds("int8", MACHINE, 10**5) == pytest.approx(2e11 / 8e12)
    assert weight_bytes([Gemm(1, 100, 100, count=3)], "fp32") == 120_000
    assert gemm_seconds([Gemm(1, 100, 100, count=3)], "fp32", MACHINE) == pytest.approx(3 * 4 * 10_200 / 1e11)
    assert gemm_speedup([Gemm(1, 100, 100)], "int8", MACHINE) == pytest.approx(40_800 / 10_500)
