"""OpenVINO: float32, bfloat16, and int8 by NNCF with SmoothQuant (model type transformer). Runs in its own venv."""

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import protocol


def convert(export: Path, artifact: Path, options: dict[str, Any]) -> None:
    """Converts the PyTorch model, quantizes it, saves the IR in float32 or int8."""
    import torch
    from hidden import Hidden

    (calibration,) = protocol.load_ids(export / "calibration.npz")
    example = {name: torch.from_numpy(array) for name, array in protocol.as_inputs(calibration[:2]).items()}
    with torch.no_grad():
        shapes = [(ov.PartialShape([-1, -1]), ov.Type.i64)] * 2
        model = ov.convert_model(Hidden(export), example_input=example, input=shapes)
    if options["precision"] == "int8":
        import nncf

        model = nncf.quantize(
            model,
            nncf.Dataset([protocol.as_inputs(ids[None]) for ids in calibration]),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(calibration),
        )
    ov.save_model(model, artifact / "model.xml", compress_to_fp16=False)


def load(artifact: Path, options: dict[str, Any]) -> "OpenVinoEngine":
    """Reads the IR; compilation waits for the shapes of the requests."""
    return OpenVinoEngine(artifact, options)


class OpenVinoEngine:
    """An OpenVINO model for one request at a time, with its shapes fixed where all requests have the same.

    Besides the int8 products, int8 models run in the precision that the CPU plugin prefers: bfloat16 where the CPU has
    it, as users get it by default.
    """

    def __init__(self, artifact: Path, options: dict[str, Any]):
        self._core = ov.Core()
        self._model = self._core.read_model(artifact / "model.xml")
        self._varies = options["varies"]
        self._settings = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}
        self._settings["INFERENCE_NUM_THREADS"] = str(options["threads"])
        self._settings["ENABLE_CPU_PINNING"] = "NO"  # the process is pinned already
        if options["precision"] != "int8":
            self._settings["INFERENCE_PRECISION_HINT"] = {"fp32": "f32", "bf16": "bf16"}[options["precision"]]
        self._request = None
        self.facts: dict[str, Any] = {}

    def prepare(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        if self._request is None:
            if not self._varies:
                self._model.reshape({port: list(ids.shape) for port in self._model.inputs})
            compiled = self._core.compile_model(self._model, "CPU", self._settings)
            self.facts["inference_precision"] = str(compiled.get_property("INFERENCE_PRECISION_HINT"))
            self._request = compiled.create_infer_request()
        return protocol.as_inputs(ids)

    def run(self, inputs: dict[str, np.ndarray]) -> Any:
        return self._request.infer(inputs, share_inputs=True, share_outputs=True)

    def to_numpy(self, output: Any) -> np.ndarray:
        return np.array(output[0], dtype=np.float32)


if __name__ == "__main__":
    protocol.main(convert, load)
