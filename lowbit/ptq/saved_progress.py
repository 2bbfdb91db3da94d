"""What is done of a reconstruction, in a folder, so that a killed run goes on behind it.

One safetensors file per block, and one with the last snapshot of distillation. Files of another run, which
has other weights, images, settings or another seed, are not taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from paddle import Tensor, nn

from lowbit.digest import digest
from lowbit.files import write_atomically
from lowbit.ptq.blocks import Block
from lowbit.ptq.distillation import Snapshot
from lowbit.recipe.recipe import Reconstruction

_SNAPSHOT = "distillation.safetensors"
_OF_DISTILLATION = {name for name in Reconstruction.model_fields if name.startswith("distill")}  # settings


def run_identity(
    model: nn.Layer,
    images: list[tuple[np.ndarray, ...]],
    blocks: Sequence[Block],
    settings: Reconstruction,
    seed: int,
) -> str:
    """A digest of everything that the result depends on."""
    arrays = [tensor.numpy() for tensor in model.state_dict().values()]
    arrays += [x for batch in images for x in batch]
    of_blocks = settings.model_dump_json(exclude=_OF_DISTILLATION)
    described = [of_blocks, str(seed), str([block.modules for block in blocks])]
    parts: list[Any] = [text.encode() for text in described]
    parts += [memoryview(np.ascontiguousarray(a)).cast("B") for a in arrays]
    return digest(parts)


class SavedProgress:
    """One safetensors file per block; `count` of them are of this very run, from the first on."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._folder, self._identity = folder, identity
        folder.mkdir(parents=True, exist_ok=True)
        self.count = 0
        while self._is_ours(self.count):
            self.count += 1

    def save(self, number: int, block: Block, layers: dict[str, nn.Layer], result: dict[str, Any]) -> None:
        """Keep what the block's modules hold."""
        tensors = {key: tensor.numpy() for key, tensor in block_state(block, layers).items()}
        about = {"identity": self._identity, "result": json.dumps(result)}
        self._write(self._path(number), tensors, about)

    def _write(self, path: Path, tensors: dict[str, np.ndarray], about: dict[str, str]) -> None:
        content = safetensors.numpy.save(tensors, metadata=about)
        write_atomically(path, lambda file: file.write_bytes(content))

    def load(self, number: int, block: Block, layers: dict[str, nn.Layer]) -> dict[str, Any]:
        """Let the block's modules have what was kept; returns the result that was."""
        with safetensors.safe_open(self._path(number), framework="numpy") as file:
            for key, tensor in block_state(block, layers).items():
                tensor.set_value(file.get_tensor(key))
            return json.loads(file.metadata()["result"])

    def save_snapshot(self, settings: Reconstruction, snapshot: Snapshot) -> None:
        """Keep how far distillation is."""
        about = {"identity": self._identity + _distillation(settings), "step": str(snapshot.step)}
        self._write(self._folder / _SNAPSHOT, snapshot.arrays, about)

    def load_snapshot(self, settings: Reconstruction) -> Snapshot | None:
        """How far distillation with these settings was; None where it had not begun."""
        try:
            with safetensors.safe_open(self._folder / _SNAPSHOT, framework="numpy") as file:
                about = file.metadata() or {}
                if about.get("identity") != self._identity + _distillation(settings):
                    return None
                names = file.keys()
                return Snapshot(int(about["step"]), {name: file.get_tensor(name) for name in names})
        except (OSError, safetensors.SafetensorError):
            return None

    def _path(self, number: int) -> Path:
        return self._folder / f"block_{number:03}.safetensors"

    def _is_ours(self, number: int) -> bool:
        try:
            with safetensors.safe_open(self._path(number), framework="numpy") as file:
                return (file.metadata() or {}).get("identity") == self._identity
        except (OSError, safetensors.SafetensorError):
            return False


def _distillation(settings: Reconstruction) -> str:
    return settings.model_dump_json(include=_OF_DISTILLATION)


def block_state(block: Block, layers: dict[str, nn.Layer]) -> dict[str, Tensor]:
    return {
        f"{place}.{key}": tensor
        for place, name in enumerate(block.modules)
        for key, tensor in layers[name].state_dict().items()
    }
