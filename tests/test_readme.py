import re
from pathlib import Path

import pytest
from conftest import write_tokenizer
from transformers import BertForQuestionAnswering

from hf_smoothquant import cpu

README = Path(__file__).parents[1] / "README.md"


@pytest.mark.filterwarnings("ignore")
def test_quick_start_runs_verbatim(tiny_config, tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    assert len(code.strip().splitlines()) <= 15
    monkeypatch.chdir(tmp_path)
    BertForQuestionAnswering(tiny_config).save_pretrained("model")
    write_tokenizer(tmp_path / "model")
    namespace = {}
    exec(compile(code, "README.md", "exec"), namespace)
    assert namespace["model"].fusion_coverage.fused == (0 if cpu.SATURATES else 12)
    assert namespace["model"].config.quantization_config.calibration["dataset"] == "builtin"
