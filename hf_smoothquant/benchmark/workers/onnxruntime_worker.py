"""ONNX Runtime: float32, dynamic int8, static int8 (QDQ), all after its transformer optimizer. Runs in its own venv."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import protocol
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static


def convert(export: Path, artifact: Path, options: dict[str, Any]) -> None:
    """Exports to ONNX, fuses, quantizes."""
    from onnxruntime.transformers import optimizer

    config = json.loads((export / "config.json").read_text())
    exported, fused = artifact / "exported.onnx", artifact / "fused.onnx"
    to_onnx(export, exported)
    heads = config.get("num_attention_heads") or config["n_heads"]
    hidden = config.get("hidden_size") or config["dim"]
    optimized = optimizer.optimize_model(str(exported), "bert", num_heads=heads, hidden_size=hidden, opt_level=1)
    optimized.save_model_to_file(str(fused))
    fusions = optimized.get_fused_operator_statistics()
    (artifact / "fusions.json").write_text(json.dumps({name: count for name, count in fusions.items() if count}))
    model = artifact / "model.onnx"
    if options["precision"] == "fp32":
        fused.rename(model)
    elif options["precision"] == "dynamic":
        types = {"DefaultTensorType": onnx.TensorProto.FLOAT}  # shape inference stops at the fused operators
        quantize_dynamic(fused, model, per_channel=True, weight_type=QuantType.QInt8, extra_options=types)
    else:
        (calibration,) = protocol.load_ids(export / "calibration.npz")
        quantize_static(
            fused,
            model,
            Sequences(calibration),
            op_types_to_quantize=["MatMul", "Gemm", "Attention"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"WeightSymmetric": True},
        )
    for file in (exported, fused):
        file.unlink(missing_ok=True)


def to_onnx(export: Path, file: Path) -> None:
    """The float model with attention spelled out, which is the form that the optimizer's fusions know."""
    import torch
    from hidden import Hidden

    ids = torch.from_numpy(protocol.load_ids(export / "calibration.npz")[0][:2])
    names = ["input_ids", "attention_mask"]
    with torch.no_grad():
        torch.onnx.export(
            Hidden(export, attn_implementation="eager"),
            (ids, torch.ones_like(ids)),
            file,
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes={name: {0: "batch", 1: "length"} for name in [*names, "last_hidden_state"]},
            opset_version=17,
            dynamo=False,
        )


class Sequences(CalibrationDataReader):
    """Calibration sequences, one at a time."""

    def __init__(self, sequences: np.ndarray):
        self._batches: Iterator[dict[str, np.ndarray]] = (protocol.as_inputs(ids[None]) for ids in sequences)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def load(artifact: Path, options: dict[str, Any]) -> "OnnxRuntimeEngine":
    """Opens a session with the given threads."""
    return OnnxRuntimeEngine(artifact, options)


class OnnxRuntimeEngine:
    """A session behind the protocol."""

    def __init__(self, artifact: Path, options: dict[str, Any]):
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = options["threads"]
        settings.inter_op_num_threads = 1
        settings.add_session_config_entry("session.force_spinning_stop", "1")  # no spinning in others' turns
        self._session = ort.InferenceSession(artifact / "model.onnx", settings, providers=["CPUExecutionProvider"])
        self.facts: dict[str, Any] = {"fusions": json.loads((artifact / "fusions.json").read_text())}

    def prepare(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        return protocol.as_inputs(ids)

    def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        return self._session.run(None, inputs)[0]

    def to_numpy(self, output: np.ndarray) -> np.ndarray:
        return output


if __name__ == "__main__":
    protocol.main(convert, load)
