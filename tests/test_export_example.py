"""The export example as a user runs it. It compiles all six layers of MiniLM, for a minute."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_smoothquant import cpu

EXAMPLE = Path(__file__).parents[1] / "examples" / "export_aot.py"


@pytest.mark.slow
def test_demo(minilm):
    run = subprocess.run([sys.executable, EXAMPLE, "--demo"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert f"{0 if cpu.SATURATES else 37} fused int8 kernels, 0 Linears left unfused" in run.stdout
    assert all(float(ratio) > 25 for ratio in re.findall(r": (-?\d+) dB", run.stdout))
    assert "In a fresh process" in run.stdout and "batch 3: [3, 25, 384]" in run.stdout
