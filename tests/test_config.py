import copy
import json

import numpy as np
import pytest

from hf_smoothquant import SmoothQuantConfig


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"activation": "int4"}, ValueError, "'static', 'dynamic'"),
        ({"activation": None}, ValueError, "activation"),
        ({"alpha": 1.5}, ValueError, "between 0"),
        ({"alpha": -0.1}, ValueError, "between 0"),
        ({"alpha": float("nan")}, ValueError, "between 0"),
        ({"alpha": "strong"}, TypeError, "alpha must be a number"),
        ({"alpha": np.float32(1.5)}, ValueError, "between 0"),
        ({"alpha": True}, TypeError, "alpha must be a number"),
        ({"alpha": {"dense": 2}}, ValueError, "between 0"),
        ({"alpha": {"dense": "high"}}, TypeError, "alpha must be a number"),
        ({"alpha": {"re:(": 0.5}}, ValueError, "no regular expression"),
        ({"alpha": {3: 0.5}}, TypeError, "no module name"),
        ({"num_samples": 0}, ValueError, "num_samples must be at least 1"),
        ({"num_samples": 1.5}, TypeError, "num_samples must be a whole number"),
        ({"max_length": -1}, ValueError, "max_length"),
        ({"max_length": "512"}, TypeError, "max_length"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": True}, TypeError, "batch_size"),
        ({"seed": "x"}, TypeError, "seed"),
        ({"dataset_kwargs": "train"}, TypeError, "dataset_kwargs"),
        ({"text_columns": "text"}, TypeError, "text_columns"),
        ({"fallback": 20}, TypeError, "fallback must be a dict"),
        ({"fallback": {}}, ValueError, '"min_sqnr_db", "max_layers" or both'),
        ({"fallback": {"sqnr": 20}}, ValueError, "fallback has no sqnr. It takes: min_sqnr_db"),
        ({"fallback": {"min_sqnr_db": 0}}, ValueError, "between 0 and 100"),
        ({"fallback": {"min_sqnr_db": "20"}}, ValueError, "number of decibels"),
        ({"fallback": {"max_layers": 1.5}}, ValueError, "whole number"),
        ({"fallback": {"max_layers": 1, "to": "int4"}}, ValueError, "'dynamic' or 'float'"),
        ({"activation": "dynamic", "fallback": {"max_layers": 1, "to": "dynamic"}}, ValueError, "'float' here"),
        ({"min_features": 0}, ValueError, "min_features"),
        ({"modules_to_not_convert": "lm_head"}, TypeError, "list of names"),
        ({"modules_to_not_convert": [1]}, TypeError, "list of names"),
        ({"modules_to_not_convert": ["re:("]}, ValueError, "re:\\("),
        ({"tokenizer": 3}, TypeError, "tokenizer"),
        ({"calibration": "yes"}, TypeError, "calibration"),
        ({"alhpa": 0.5}, TypeError, "alhpa"),
    ],
)
def test_bad_arguments(arguments, error, says):
    with pytest.raises(error, match=says):
        SmoothQuantConfig(**arguments)


def test_numbers_of_numpy():
    config = SmoothQuantConfig(alpha=np.float32(0.5), num_samples=np.int64(4))
    by_pattern = SmoothQuantConfig(alpha={"query": np.float64(0.25), "dense": "auto"})
    assert json.loads(config.to_json_string())["alpha"] == 0.5 and config == SmoothQuantConfig(alpha=0.5, num_samples=4)
    assert json.loads(by_pattern.to_json_string())["alpha"] == {"query": 0.25, "dense": "auto"}


def test_json_round_trip():
    config = SmoothQuantConfig(activation="dynamic", alpha=0.7, fallback={"max_layers": 4}, num_samples=5)
    again = SmoothQuantConfig.from_dict(json.loads(config.to_json_string()))
    assert again == config
    assert again.to_dict() | {"quant_method": "smoothquant", "format_version": 1} == again.to_dict()


def test_runtime_objects_never_reach_json():
    config = SmoothQuantConfig(dataset=["secret"], tokenizer=lambda text: text)
    assert "dataset" not in config.to_dict() and "tokenizer" not in config.to_dict()
    assert (
        "secret" not in config.to_json_string() and "secret" not in repr(config) and "secret" not in str(dict(config))
    )


def test_runtime_objects_are_shared_not_copied():
    batches = (batch for batch in [])  # a generator can't be copied
    config = SmoothQuantConfig(dataset=batches, modules_to_not_convert=["a"])
    clone = copy.deepcopy(config)
    assert clone.dataset is batches
    assert clone.modules_to_not_convert is not config.modules_to_not_convert


def test_newer_format_is_refused():
    with pytest.raises(ValueError, match="Upgrade"):
        SmoothQuantConfig.from_dict({"quant_method": "smoothquant", "format_version": 2})
    with pytest.raises(ValueError, match="whole number from 1"):
        SmoothQuantConfig.from_dict({"format_version": 0})
    with pytest.raises(TypeError, match=r"has no num_sample\. It takes: activation"):
        SmoothQuantConfig.from_dict({"quant_method": "smoothquant", "num_sample": 4})  # no checkpoint: a user's dict
    with pytest.raises(ValueError, match="whole number"):
        SmoothQuantConfig.from_dict({"format_version": "one"})


def test_unknown_keys_of_a_checkpoint_are_skipped(transformers_warnings):
    config = SmoothQuantConfig.from_dict(
        {"format_version": 1, "activation": "dynamic", "note": "by me", "dataset": "/home/me"}
    )
    assert config.activation == "dynamic" and config.dataset is None and not hasattr(config, "note")
    assert "dataset, note" in transformers_warnings.text
