"""The manifest of a package: what is in it, what it takes, and where it runs. Written as JSON beside the code."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_smoothquant.aot.machine import Machine
from hf_smoothquant.aot.signature import InputSpec, Signature

MANIFEST = "manifest.json"
PACKAGE = "model.pt2"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Manifest:
    """The manifest.

    Attributes:
        model_class (`str`): full name of the model's class.
        output_class (`str`): full name of the class of its outputs.
        signature (`Signature`): inputs and ranges.
        outputs (`tuple[str, ...]`): names of the outputs; empty for a tuple.
        machine (`Machine`): what it was compiled for.
        hf_smoothquant (`str`): version of this library that wrote it.
        fused (`int`): number of fused int8 kernels in the compiled graph.
        unfused (`tuple[str, ...]`): quantized Linears that did not become one.
        sqnr_db (`dict[str, float]`): signal-to-noise ratio of the package's outputs to the eager model's, by the sizes
            of the inputs it was measured on. 200 stands for equal outputs.
        package_bytes (`int`): size of the package's file.
    """

    model_class: str
    output_class: str
    signature: Signature
    outputs: tuple[str, ...]
    machine: Machine
    hf_smoothquant: str
    fused: int
    unfused: tuple[str, ...]
    package_bytes: int
    sqnr_db: dict[str, float] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Writes manifest.json into `folder`."""
        content = {"format_version": FORMAT_VERSION, **asdict(self)}
        (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Manifest":
        """Reads it again.

        Raises:
            `FileNotFoundError`: there is no package in `folder`.
            `ValueError`: the manifest is of a newer format, or damaged.
        """
        if not (folder / MANIFEST).is_file():
            raise FileNotFoundError(
                f"{folder} has no {MANIFEST}: it isn't a package of hf_smoothquant.export, or its export was "
                "interrupted. A checkpoint of save_pretrained is loaded with from_pretrained."
            )
        try:
            content = json.loads((folder / MANIFEST).read_text())
            newer = content["format_version"] > FORMAT_VERSION
            manifest = None if newer else cls._from_json(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(
                f"{folder / MANIFEST} is damaged ({type(error).__name__}: {error}). Export again."
            ) from error
        if newer:
            raise ValueError(
                f"The package has format {content['format_version']}, and this version of hf_smoothquant reads up "
                f"to {FORMAT_VERSION}: pip install --upgrade hf_smoothquant."
            )
        return manifest

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> "Manifest":
        content = {key: value for key, value in content.items() if key in cls.__dataclass_fields__}
        signature, machine = content["signature"], content["machine"]
        inputs = tuple(InputSpec(spec["name"], spec["dtype"], tuple(spec["shape"])) for spec in signature["inputs"])
        ranges = {axis: (low, high) for axis, (low, high) in signature["ranges"].items()}
        content["signature"] = Signature(inputs, ranges)
        content["machine"] = Machine(**{**machine, "capabilities": tuple(machine["capabilities"])})
        return cls(**{**content, "outputs": tuple(content["outputs"]), "unfused": tuple(content["unfused"])})
