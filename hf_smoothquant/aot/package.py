"""`hf_smoothquant.load`: runs a package in a process that has compiled nothing."""

import importlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.export.pt2_archive._package import AOTICompiledModel
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils import ModelOutput, logging

from hf_smoothquant.aot.machine import Machine
from hf_smoothquant.aot.manifest import PACKAGE, Manifest

logger = logging.get_logger(__name__)


class ExportedModel:
    """A model that was compiled ahead of time: called with keyword tensors, it returns what the model returns.

    It may be called from several threads, which then take turns.

    Args:
        folder (`Path`): the package.
        manifest (`Manifest`): its manifest.

    Attributes:
        manifest (`Manifest`): inputs, ranges, machine, quality.
    """

    def __init__(self, folder: Path, manifest: Manifest):
        self.folder = folder
        self.manifest = manifest
        # The class of the outputs registers itself with torch when its module is imported, and is found by name.
        importlib.import_module(manifest.output_class.rpartition(".")[0])
        self._run = _load_code(folder / PACKAGE)

    def __call__(self, **inputs: torch.Tensor) -> ModelOutput | tuple[Any, ...]:
        """The outputs for `inputs`.

        Raises:
            `ValueError`: an input is unknown, missing, of another dtype, or its size is outside the range.
        """
        checked = self.manifest.signature.check(inputs)
        with torch.no_grad():
            return self._run(**checked)

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The model's config."""
        return AutoConfig.from_pretrained(self.folder)

    def __repr__(self) -> str:
        signature = self.manifest.signature
        inputs = ", ".join(f"{spec.name}: {spec.dtype}{list(spec.shape)}" for spec in signature.inputs)
        ranges = ", ".join(f"{axis} {low} to {high}" for axis, (low, high) in signature.ranges.items())
        return f"ExportedModel({self.manifest.model_class.rpartition('.')[2]}({inputs}); {ranges or 'fixed sizes'})"


def _load_code(file: Path) -> AOTICompiledModel:
    """What `torch._inductor.aoti_load_package` does (torch 2.13), without a C++ compiler.

    That compares the CPU with the package's and asks a compiler what the CPU can do: where packages run there may be
    none. `Machine` has compared them already.
    """
    name, single_threaded, runners, device = "model", False, 1, -1
    loader = torch._C._aoti.AOTIModelPackageLoader(str(file), name, single_threaded, runners, device)
    return AOTICompiledModel(loader)


def load(path: str | os.PathLike) -> ExportedModel:
    """Loads a package of `hf_smoothquant.export`. Nothing is compiled.

    A package holds native code that is run: load only what you trust.

    Args:
        path (`str` or `os.PathLike`): the folder.

    Returns:
        `ExportedModel`: called like the model, with keyword tensors. Its outputs are of the model's own class, and
        equal the model's within `manifest.sqnr_db`.

    Raises:
        `FileNotFoundError`: there is no package.
        `RuntimeError`: it was compiled with another torch or for a CPU that has more instructions than this one.
        `ValueError`: a file is damaged or of a newer format.
    """
    folder = Path(path)
    manifest = Manifest.load(folder)
    here = Machine.here()
    manifest.machine.check_runs_on(here)
    found = (folder / PACKAGE).stat().st_size if (folder / PACKAGE).is_file() else 0
    if found != manifest.package_bytes:
        raise ValueError(
            f"{folder / PACKAGE} has {found} bytes, and its manifest says {manifest.package_bytes}: it was cut short "
            "or exchanged. Copy the whole folder again, or export again."
        )
    if here.threads != manifest.machine.threads:
        logger.warning(
            f"The package was compiled for {manifest.machine.threads} threads, and this process has {here.threads}: "
            "parts of it won't use them well. Call torch.set_num_threads with the same number before export and load."
        )
    return ExportedModel(folder, manifest)
