"""Opens an exported model and compares it with the trained one, in a process of its own.

A damaged model can bring down the process that opens it. `python -m lowbit.tipc.model_check IN.json OUT.json`
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import paddle

from lowbit.data.transforms import compose
from lowbit.deploy import InferenceYml, compare_outputs, find_images
from lowbit.deploy.infer import prepare_images, softmax
from lowbit.errors import LowbitError
from lowbit.layers import eval_mode, is_quantized
from lowbit.tipc.exported_files import check_quantized, check_same_weights
from lowbit.tipc.exported_program import ExportedProgram, OnnxProgram, PaddleProgram
from lowbit.tipc.finding import Expected, Finding, Request
from lowbit.tipc.result import Check
from lowbit.training.checkpoint import find_checkpoint, read_checkpoint
from lowbit.training.trained_model import TrainedModel, config_of, open_checkpoint, open_weights

_IMAGES = 8  # to compare on


def check_model(request: Request) -> Finding:
    """All that can be found out about an exported model."""
    paddle.set_device("cpu")
    trained = _open_trained(request.weights)
    programs: list[ExportedProgram] = [PaddleProgram(Path(request.program))] if request.program else []
    programs += [OnnxProgram(Path(request.onnx))] if request.onnx else []
    checks = [check for program in programs for check in _check_files(program, request, trained)]
    yml = next((program.yml for program in programs if program.yml), None)
    if any(check.passed is False for check in checks):
        return Finding(checks=checks)
    if trained is None or yml is None:
        why = "the trained model" if trained is None else "how images are prepared"
        why = f"{why} is not known here: it was not written by lowbit"
        return Finding(checks=[*checks, Check("same answers as trained", None, why)])
    images, names, count = _images(request.images, yml)
    checks += [_compare(program, trained, images) for program in programs]
    return Finding(checks=checks, expected=_expected(trained, images, names), image_count=count)


def _open_trained(weights: str | None) -> TrainedModel | None:
    """The model of a checkpoint that lowbit has written; None for anybody else's."""
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
            checks.append(check_quantized(program.signs(), layers))
    if trained is None and request.weights and isinstance(program, PaddleProgram):
        path = Path(request.weights)
        checks.append(check_same_weights(path, program.files, quantized=request.quantized))
    return checks


def _images(path: str | None, yml: InferenceYml) -> tuple[np.ndarray, list[str], int]:
    """Prepared images, their names, and how many there are in all; random ones where none are named."""
    if path is None:
        shape = yml.Global.image_shape or (3, 224, 224)
        return np.random.default_rng(0).standard_normal((_IMAGES, *shape), dtype=np.float32), [], 0
    names = find_images(path)
    return prepare_images(names[:_IMAGES], compose(yml.ops)), names[:_IMAGES], len(names)


def _compare(program: ExportedProgram, trained: TrainedModel, images: np.ndarray) -> Check:
    found = compare_outputs(trained.model, program, images)
    same = found.within(program.tolerance(trained.quantized))
    return Check("same answers as trained", same, f"{program.path.name}: {found}")


def _expected(trained: TrainedModel, images: np.ndarray, names: list[str]) -> list[Expected]:
    if not names:
        return []
    with eval_mode(trained.model):
        probabilities = softmax(trained.model(paddle.to_tensor(images)).numpy())
    return [Expected(name, row.tolist()) for name, row in zip(names, probabilities, strict=True)]


def main(request: Path, answer: Path) -> None:
    """Read a request, write what was found."""
    try:
        found = check_model(Request(**json.loads(request.read_text("utf-8"))))
    except LowbitError as error:
        found = Finding(checks=[Check("model", False, str(error))])
    answer.write_text(json.dumps(asdict(found)), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
