"""lowbit's own runtime as an engine: an ONNX file in integers, bit by bit as it was trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lowbit.deploy.engines.engine import (
    EngineOptions,
    Signature,
    TensorInfo,
    check_batch,
    check_one_in_one_out,
    check_threads,
    find_onnx_file,
    image_shape_of,
)
from lowbit.errors import LowbitError
from lowbit.machine import cpu_info
from lowbit.runtime import Engine as Runtime
from lowbit.version import __version__


class LowbitEngine:
    """An ONNX file in lowbit's runtime.

    engine = LowbitEngine("runs/digits/export/inference.onnx")
    logits = engine.run(images)        # float32 [N, C, H, W], any N
    seen = engine.run_with(images, ["layer1.0.conv1.input"])
    """

    def __init__(self, path: str | Path, *, threads: int | None = None) -> None:
        check_threads(threads)
        self.name = f"lowbit runtime {__version__}"
        self.path = find_onnx_file(path)
        self.options = EngineOptions(device="cpu", threads=threads or cpu_info().cores, memory_optim=True)
        try:
            self._runtime = Runtime(self.path, threads=self.options.threads)
        except LowbitError as error:
            raise LowbitError(
                f"lowbit's runtime cannot open {error}. If the file is damaged, export the model again"
            ) from error
        shapes = self._runtime.input_shapes
        self.image_shape = image_shape_of(shapes[0]) if shapes else None

    def run(self, batch: np.ndarray) -> np.ndarray:
        """Logits [N, classes] of float32 images [N, C, H, W]."""
        check_one_in_one_out(len(self._runtime.input_names), len(self._runtime.output_names), self.path)
        try:
            return self._runtime(check_batch(batch, self.image_shape))
        except LowbitError as error:
            if self.image_shape is not None:
                raise
            raise LowbitError(f"{self.path} cannot run on a batch of {list(batch.shape)}: {error}") from error

    def run_all(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """All outputs of a model of any inputs and outputs, given all inputs in their order."""
        return self._runtime.run_all(inputs)

    def signature(self) -> Signature:
        """Names, element types and shapes of the inputs, and the outputs' names."""
        runtime = self._runtime
        inputs = [
            TensorInfo(name, kind, tuple(-1 if size is None else size for size in shape))
            for name, kind, shape in zip(
                runtime.input_names, runtime.input_types, runtime.input_shapes, strict=True
            )
        ]
        return Signature(tuple(inputs), tuple(runtime.output_names))

    def memory(self, batch: np.ndarray) -> tuple[int, int]:
        """Bytes of the arena and of the packed weights for batches of this size."""
        return self._runtime.memory(check_batch(batch, self.image_shape))

    def run_with(self, batch: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The logits, and the tensors of these names, by name."""
        wanted = list(dict.fromkeys([*self._runtime.output_names, *names]))
        return self._runtime.run_with([check_batch(batch, self.image_shape)], wanted)
