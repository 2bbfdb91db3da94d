"""Opens an exported model and compares it with the trained one, in a separate process.

A damaged model can bring down the process that opens it. `python -m lowbit.tipc.model_check IN.json OUT.json`
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import paddle

from lowbit.data.transforms import compose
from lowbit.deploy import (
    Engine,
    EngineOptions,
    InferenceYml,
    ModelFiles,
    OnnxRuntimeEngine,
    PaddleEngine,
    compare_outputs,
    find_images,
    find_model_files,
    read_inference_yml,
)
from lowbit.deploy.engines.paddle_engine import open_predictor
from lowbit.deploy.infer import prepare_images, softmax
from lowbit.deploy.model_files import check_files, stored_tensors
from lowbit.errors import LowbitError
from lowbit.nn import eval_mode, is_quantized
from lowbit.safe_pickle import load_arrays
from lowbit.tipc.judge import Expected, ModelReport, Request
from lowbit.tipc.result import Check
from lowbit.training.checkpoint import find_checkpoint, read_checkpoint
from lowbit.training.trained_model import TrainedModel, config_of, open_checkpoint, open_weights

# A .json program writes Paddle's own operators as "1.name"; in a .pdmodel the names stand between bytes.
_ROUNDING = re.compile(rb'"1\.(?:round_?|quantize_linear|fake_\w*quantize\w*)"')
_QUANTIZING = re.compile(rb"(?<!de)quantize_linear|fake_\w*quantize\w*")
_TELLING = 16  # elements; a smaller array may be equal by chance


@dataclass(frozen=True)
class QuantizationCounts:
    """Counts of a program's quantizing operators and of its tensors of 8 bits or fewer."""

    roundings: int
    small_tensors: int

    @property
    def is_quantized(self) -> bool:
        return self.roundings > 0 or self.small_tensors > 0

    def __str__(self) -> str:
        return f"{self.roundings} operators that quantize, {self.small_tensors} tensors in 8 bits"


def count_paddle(files: ModelFiles) -> QuantizationCounts:
    """The counts of a Paddle program in either format."""
    pattern = _ROUNDING if files.model.suffix == ".json" else _QUANTIZING
    small = sum(tensor.is_8_bit for tensor in stored_tensors(files.params))
    return QuantizationCounts(len(pattern.findall(files.model.read_bytes())), small)


def count_onnx(path: Path) -> QuantizationCounts:
    """The counts of an ONNX file."""
    import onnx

    graph = onnx.load(str(path)).graph
    small = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8, onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    return QuantizationCounts(
        sum(node.op_type == "QuantizeLinear" for node in graph.node),
        sum(tensor.data_type in small for tensor in graph.initializer),
    )


def check_quantized(counts: QuantizationCounts, layers: int | None) -> Check:
    """Whether an exported model is quantized; `layers` is the trained model's number of quantized layers."""
    if not counts.is_quantized:
        return Check("quantized", False, "nothing in the exported model quantizes: it is the fp32 model")
    # Layers that share an input with the same scale have it quantized once; their weights are still two.
    if layers is not None and max(counts.roundings, counts.small_tensors) < layers:
        return Check("quantized", False, f"{layers} layers are quantized in training, exported: {counts}")
    return Check("quantized", True, str(counts))


def check_same_weights(weights: Path, files: ModelFiles, *, quantized: bool) -> Check:
    """Whether an exported model holds a checkpoint's arrays, for models that lowbit cannot rebuild.

    An exporter that found no fitting key exports random weights: then no array of the two is equal.
    """
    name = "weights of the checkpoint"
    if weights.suffix != ".pdparams":
        return Check(name, None, f"{weights.name} is not a .pdparams file")
    digests = {_digest(array) for array in _arrays(load_arrays(weights)) if array.size >= _TELLING}
    if not digests:
        return Check(name, None, f"{weights.name} has no array of {_TELLING} elements or more")
    found = len(digests & set(_stored_digests(files.params)))
    detail = f"{found} of the {len(digests)} arrays of {weights.name} are in {files.params.name}"
    if found:
        return Check(name, True, detail)
    if quantized:
        return Check(name, None, f"{detail}: its weights may be stored otherwise")
    return Check(name, False, f"{detail}: it was exported with other weights")


def _stored_digests(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        for tensor in stored_tensors(path):
            file.seek(tensor.start)
            yield hashlib.sha256(file.read(tensor.size)).digest()


def _digest(array: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def _arrays(value: Any) -> Iterable[np.ndarray]:
    """All arrays in dicts, lists and tuples, except constant ones, which may be equal by chance."""
    if isinstance(value, np.ndarray):
        if value.size and (value != value.flat[0]).any():
            yield value
    elif isinstance(value, (dict, list, tuple)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _arrays(inner)


class ExportedProgram:
    """An exported model. `yml` describes its images if lowbit exported it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._engine: Engine | None = None

    @property
    def yml(self) -> InferenceYml | None:
        beside = self.path.with_suffix(".yml")
        return read_inference_yml(beside) if beside.is_file() else None

    def load(self) -> str:
        """Open it, and return in which engine. Raises LowbitError if it cannot be opened."""
        raise NotImplementedError

    def counts(self) -> QuantizationCounts:
        """The counts of quantizing operators and small tensors."""
        raise NotImplementedError

    def tolerance(self, quantized: bool) -> float:
        """The allowed difference from the trained model, as a fraction of the largest logit."""
        raise NotImplementedError

    def run(self, images: np.ndarray) -> np.ndarray:
        assert self._engine is not None, "load() comes first"
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

    def counts(self) -> QuantizationCounts:
        return count_paddle(self.files)

    def tolerance(self, quantized: bool) -> float:
        return 1e-4


class OnnxProgram(ExportedProgram):
    """An `.onnx` file."""

    def load(self) -> str:
        self._engine = OnnxRuntimeEngine(self.path)
        return f"{self.path.name} in ONNX Runtime"

    def counts(self) -> QuantizationCounts:
        return count_onnx(self.path)

    def tolerance(self, quantized: bool) -> float:
        # Another engine adds in another order; of a quantized model, a value may then take another step.
        return 0.05 if quantized else 1e-3


_IMAGES = 8  # to compare on


def check_model(request: Request) -> ModelReport:
    """Run all checks on an exported model."""
    paddle.set_device("cpu")
    trained = _open_trained(request.weights)
    programs: list[ExportedProgram] = [PaddleProgram(Path(request.program))] if request.program else []
    programs += [OnnxProgram(Path(request.onnx))] if request.onnx else []
    checks = [check for program in programs for check in _check_files(program, request, trained)]
    yml = next((program.yml for program in programs if program.yml), None)
    if any(check.passed is False for check in checks):
        return ModelReport(checks=checks)
    if trained is None or yml is None:
        why = "the trained model" if trained is None else "how images are prepared"
        why = f"{why} is not known here: it was not written by lowbit"
        return ModelReport(checks=[*checks, Check("same answers as trained", None, why)])
    images, names, count = _images(request.images, yml)
    checks += [_compare(program, trained, images) for program in programs]
    return ModelReport(checks=checks, expected=_expected(trained, images, names), image_count=count)


def _open_trained(weights: str | None) -> TrainedModel | None:
    """The model of a checkpoint that lowbit has written, else None."""
    path = Path(weights) if weights else None
    checkpoint = find_checkpoint(path) if path else None
    if path is None or checkpoint is None:
        return None
    # The commands of the chain, which the user has run, trained or exported this very model before.
    if path == checkpoint:
        return open_checkpoint(path, trust=True)
    return open_weights(config_of(read_checkpoint(checkpoint), checkpoint, trust=True), path)


def _check_files(program: ExportedProgram, request: Request, trained: TrainedModel | None) -> list[Check]:
    try:
        checks = [Check("loads", True, program.load())]
    except LowbitError as error:
        return [Check("loads", False, str(error))]
    if request.quantized:
        layers = None if trained is None else sum(map(is_quantized, trained.model.sublayers()))
        if layers == 0:
            checks.append(Check("quantized", False, "no layer of the trained model is quantized"))
        else:
            checks.append(check_quantized(program.counts(), layers))
    if trained is None and request.weights and isinstance(program, PaddleProgram):
        path = Path(request.weights)
        checks.append(check_same_weights(path, program.files, quantized=request.quantized))
    return checks


def _images(path: str | None, yml: InferenceYml) -> tuple[np.ndarray, list[str], int]:
    """Prepared images, their names, and the number of all images; random ones without a path."""
    if path is None:
        shape = yml.Global.image_shape or (3, 224, 224)
        return np.random.default_rng(0).standard_normal((_IMAGES, *shape), dtype=np.float32), [], 0
    names = find_images(path)
    return prepare_images(names[:_IMAGES], compose(yml.ops)), names[:_IMAGES], len(names)


def _compare(program: ExportedProgram, trained: TrainedModel, images: np.ndarray) -> Check:
    found = compare_outputs(trained.model, cast(Engine, program), images)
    same = found.within(program.tolerance(trained.quantized))
    return Check("same answers as trained", same, f"{program.path.name}: {found}")


def _expected(trained: TrainedModel, images: np.ndarray, names: list[str]) -> list[Expected]:
    if not names:
        return []
    with eval_mode(trained.model):
        probabilities = softmax(trained.model(paddle.to_tensor(images)).numpy())
    return [Expected(name, row.tolist()) for name, row in zip(names, probabilities, strict=True)]


def main(request: Path, answer: Path) -> None:
    """Read a request, write a report."""
    try:
        found = check_model(Request(**json.loads(request.read_text("utf-8"))))
    except LowbitError as error:
        found = ModelReport(checks=[Check("model", False, str(error))])
    answer.write_text(json.dumps(asdict(found)), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
