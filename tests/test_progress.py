import pytest
import torch
from conftest import TEXTS
from transformers import AutoModelForQuestionAnswering, BertForQuestionAnswering, logging

from hf_smoothquant import SmoothQuantConfig
from hf_smoothquant.calibration.data import calibration_data
from hf_smoothquant.progress import progress


@pytest.fixture
def bars():
    """Progress bars on, as they are by default; gives the arguments of those that were made."""
    made = []

    def record(factory, args, kwargs):
        made.append(kwargs)
        return factory(*args, **kwargs)

    logging.enable_progress_bar()
    logging.set_tqdm_hook(record)
    yield made
    logging.set_tqdm_hook(None)
    logging.disable_progress_bar()


def quantize(folder):
    config = SmoothQuantConfig(dataset=TEXTS, batch_size=3)
    AutoModelForQuestionAnswering.from_pretrained(folder, quantization_config=config)


def test_calibration_has_a_bar_with_the_time_left(tiny_bert, bars, capfd):
    quantize(tiny_bert)
    (calibrating,) = (bar for bar in bars if bar["desc"] == "Calibrating")
    assert calibrating["total"] == 3  # 8 texts, 3 at a time: with a total, tqdm shows the time left
    shown = capfd.readouterr().err
    assert "Calibrating:   0%" in shown and "0/3 [00:00<" in shown and "Smoothing:   0%" in shown


@pytest.mark.parametrize("quiet", [logging.disable_progress_bar, logging.set_verbosity_error])
def test_quiet_when_transformers_is(tiny_bert, bars, capfd, quiet):
    quiet()
    quantize(tiny_bert)
    shown = capfd.readouterr().err
    assert "Calibrating" not in shown and "Smoothing" not in shown


def test_hidden_in_other_processes(bars, capfd):
    assert list(progress([1, 2], "Calibrating", "batch", hidden=True)) == [1, 2]
    assert "Calibrating" not in capfd.readouterr().err


@pytest.mark.parametrize("samples", [4, 5, 128])
@pytest.mark.parametrize(("kind", "most"), [(list, 4), (iter, 4), (lambda batches: (b for b in batches), 64)])
def test_number_of_batches_that_are_expected(tiny_bert, samples, kind, most):
    """Batches of 2, four of them: as many as the samples need, and no more than there are where that is known."""
    model = BertForQuestionAnswering.from_pretrained(tiny_bert)
    dataset = kind([torch.randint(5, 64, (2, 6)) for _ in range(4)])
    data = calibration_data(SmoothQuantConfig(dataset=dataset, num_samples=samples), model)
    assert data.num_batches == min(-(-samples // 2), most)
