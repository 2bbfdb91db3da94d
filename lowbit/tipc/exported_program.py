"""An exported model in one of its formats: opened, run, and looked through for signs of quantization."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lowbit.deploy import (
    Engine,
    EngineOptions,
    InferenceYml,
    OnnxRuntimeEngine,
    PaddleEngine,
    find_model_files,
    read_inference_yml,
)
from lowbit.deploy.engines.paddle_engine import open_predictor
from lowbit.deploy.model_files import check_files
from lowbit.tipc.exported_files import Signs, onnx_signs, paddle_signs


class ExportedProgram:
    """What both formats have in common. `yml` describes the images where lowbit exported the model."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine: Engine | None = None

    @property
    def yml(self) -> InferenceYml | None:
        beside = self.path.with_suffix(".yml")
        return read_inference_yml(beside) if beside.is_file() else None

    def load(self) -> str:
        """Open it; says where. A LowbitError says why it cannot be opened."""
        raise NotImplementedError

    def signs(self) -> Signs:
        """Of quantization."""
        raise NotImplementedError

    def tolerance(self, quantized: bool) -> float:
        """How far answers may be from the trained model's, as a fraction of the largest logit."""
        raise NotImplementedError

    def run(self, images: np.ndarray) -> np.ndarray:
        return self._engine.run(images)


class PaddleProgram(ExportedProgram):
    """`inference.json` or `.pdmodel`, with its `.pdiparams`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.files = find_model_files(path.parent, path.stem)

    def load(self) -> str:
        if self.yml is None:  # not lowbit's: it may have any inputs and outputs, and is only opened
            check_files(self.files, {})
            open_predictor(self.files, EngineOptions(device="cpu", threads=1, optimize=False))
        else:
            # As it was written, without merging operators: then it computes what the model does.
            self._engine = PaddleEngine(
                self.path.parent, onednn=False, optimize=False, file_name=self.path.stem
            )
        return f"{self.path.name} in Paddle Inference"

    def signs(self) -> Signs:
        return paddle_signs(self.files)

    def tolerance(self, quantized: bool) -> float:
        return 1e-4


class OnnxProgram(ExportedProgram):
    """An `.onnx` file."""

    def load(self) -> str:
        self._engine = OnnxRuntimeEngine(self.path)
        return f"{self.path.name} in ONNX Runtime"

    def signs(self) -> Signs:
        return onnx_signs(self.path)

    def tolerance(self, quantized: bool) -> float:
        # Another engine adds in another order; of a quantized model, a value may then take another step.
        return 0.05 if quantized else 1e-3
