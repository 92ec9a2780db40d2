"""The one command for the paper's models, offline on tiny ones."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "examples" / "reproduce_paper.py"


def test_demo(tmp_path):
    command = [sys.executable, SCRIPT, "--demo", "-o", tmp_path]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert finished.returncode == 0, finished.stderr
    header, _, squad, mnli = (tmp_path / "table.md").read_text().splitlines()
    assert header == "| | fp32 | bf16 | static | dynamic |"
    cells = squad.strip("| ").split(" | ")
    assert cells[0].endswith("on SQuAD") and len(cells) == 5 and all(" / " in cell for cell in cells[1:])
    assert mnli.count("|") == 6 and 0 <= float(mnli.strip("| ").split(" | ")[1]) <= 100
