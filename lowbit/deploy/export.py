"""Export to Paddle Inference: written as a draft, run, compared with the model, then put in place."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from lowbit.accel.open_batch import open_batch
from lowbit.config.transform_ops import TransformOp, prepared_size
from lowbit.deploy.engines.engine import format_shape
from lowbit.deploy.engines.paddle_engine import PaddleEngine
from lowbit.deploy.model_files import (
    MODEL_SUFFIXES,
    describe_inference,
    find_model_files,
    sha256,
    write_inference_yml,
)
from lowbit.errors import LowbitError
from lowbit.models import not_finite
from lowbit.nn import eval_mode, frozen, has_quantized_layers, reparameterized
from lowbit.nn.eval_mode import cause, failing_layer


@contextmanager
def drafting(directory: Path, what: str) -> Iterator[Path]:
    """A folder inside of `directory`, which is made, for files that are not finished; afterwards it is gone.

    An OSError within it (a full disk, a folder that cannot be written) comes out as a LowbitError.

    with drafting(Path("export"), "the model to export") as draft:
        ...
        put_in_place(draft, Path("export"), ["inference.pdiparams", "inference.json"])
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".exporting-") as name:
            yield Path(name)
    except OSError as error:
        raise LowbitError(f"cannot write {what}: {error.strerror or error}") from error


def put_in_place(draft: Path, directory: Path, names: Sequence[str], old: Sequence[str] = ()) -> None:
    """Once all files are on the disk, remove the `old` ones and move the new ones, in this order."""
    for name in names:
        with (draft / name).open("rb") as file:
            os.fsync(file.fileno())
    for name in old:
        (directory / name).unlink(missing_ok=True)
    for name in names:
        os.replace(draft / name, directory / name)


def save_static(
    model: nn.Layer,
    prefix: Path,
    specs: Sequence[InputSpec],
    explain: Callable[[Exception], LowbitError],
) -> None:
    """`paddle.jit.save`; whatever Paddle meets while it translates the model's Python is explained.

    Blocks with branches are merged in what is written (see `reparameterized`).
    """
    try:
        with open_batch():
            paddle.jit.save(reparameterized(model), str(prefix), input_spec=list(specs))
    except Exception as error:  # anything can come out of the user's own code
        if isinstance(error, OSError) and error.errno is not None:  # a disk's; Paddle's own have no number
            raise
        raise explain(error) from error


def agrees(answer: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Whether no number differs by more than `tolerance` times the largest one that is expected.

    >>> agrees(np.array([1.0, 99.0]), np.array([1.5, 100.0]), 0.01)
    True
    """
    largest = max(float(np.abs(expected).max(initial=0)), 1e-30)
    return answer.shape == expected.shape and np.allclose(
        answer, expected, rtol=0, atol=tolerance * largest, equal_nan=True
    )


def check_finite(model: nn.Layer, model_name: str) -> None:
    """A LowbitError that names the parameters with NaN or Inf in them, if there are any."""
    bad = not_finite({name: tensor.numpy() for name, tensor in model.state_dict().items()}, model)
    if bad:
        names = ", ".join(bad[:4]) + (f" and {len(bad) - 4} more" if len(bad) > 4 else "")
        raise LowbitError(
            f"{model_name} has NaN or Inf in {names}: its training has diverged, or its weights are damaged; "
            "nothing was written"
        )


# Checks before an export in any format.


def check_image_shape(shape: tuple[int, ...]) -> None:
    """A LowbitError unless it is (channels, height, width)."""
    if len(shape) != 3 or not all(isinstance(side, int) and side > 0 for side in shape):
        raise LowbitError(
            f"image_shape must be (channels, height, width), such as (3, 224, 224); got {shape}"
        )


def expected_logits(
    model: nn.Layer, images: np.ndarray, model_name: str, classes: Sequence[str] = ()
) -> np.ndarray:
    """What the exported program has to answer; finds a shape that does not fit, with the layer's name."""
    shape = format_shape(images.shape[1:])
    try:
        logits = model(paddle.to_tensor(images))
    except Exception as error:  # the user's own forward may raise anything
        where = failing_layer(error, model)
        raise LowbitError(
            f"{model_name} does not run on images of {shape} (channels x height x width)"
            f"{f': {where}' if where else ''}: {cause(error)}"
        ) from error
    if not isinstance(logits, paddle.Tensor) or logits.ndim != 2 or logits.shape[0] != len(images):
        what = (
            f"a tensor {list(logits.shape)}" if isinstance(logits, paddle.Tensor) else type(logits).__name__
        )
        raise LowbitError(
            f"{model_name}: forward must return one tensor of logits [N, classes] in evaluation mode; for "
            f"{len(images)} images it returns {what}"
        )
    if classes and logits.shape[1] != len(classes):
        raise LowbitError(
            f"{model_name} has {logits.shape[1]} outputs, but {len(classes)} class names were given"
        )
    return logits.numpy()


def untranslatable(error: Exception, model: nn.Layer, model_name: str) -> LowbitError:
    """What to tell the user when Paddle fails to make a program of the model."""
    return LowbitError(
        f"{model_name} cannot be exported: Paddle could not translate {type(model).__name__}.forward "
        f"into a program: {cause(error)}. Common reasons: numpy inside forward, a first argument of "
        "forward that is not called self, source code that is not in a file"
    )


# Export for Paddle Inference.


# The exported program runs the same kernels as the model when nothing is merged; only sums over another
# number of threads may differ.
_TOLERANCE = 1e-4
_ONEDNN_TOLERANCE = 1e-3  # it merges operators and adds in another order
_SLOW = 0.05  # seconds an image; what is faster under oneDNN is left there
_FAR_SLOWER = 5.0  # than Paddle's own kernels
_ROUNDS = 3
_ALMOST_FULL = 1 << 16  # bytes; below this a file that cannot be read back was cut short


@dataclass(frozen=True)
class ExportedModel:
    """Where an exported model is, and how large."""

    directory: Path
    model: Path
    params: Path
    yml: Path

    @property
    def size(self) -> int:
        """Bytes that have to be shipped."""
        return sum(path.stat().st_size for path in (self.model, self.params, self.yml))


def export_model(
    model: nn.Layer,
    directory: str | Path,
    *,
    model_name: str,
    image_shape: tuple[int, int, int],
    transform_ops: Sequence[TransformOp],
    classes: Sequence[str],
    file_name: str = "inference",
    checkpoint: str | None = None,
) -> ExportedModel:
    """Write `inference.json`, `inference.pdiparams` and `inference.yml` for batches of any size.

    The program is compared with the model before it is put in place: a folder never holds half a model, an
    old program with new parameters, or one that computes something else. The model itself stays as it is,
    also in the middle of training: parameters, buffers, modes, RNG. `checkpoint` is the SHA-256 of the file
    that the model is from, by which `verify` knows whether the export is still that of the run.

    export_model(net, "export", model_name="resnet18", image_shape=(3, 224, 224),
                 transform_ops=ops, classes=names)
    """
    directory = Path(directory)
    model = model._layers if isinstance(model, paddle.DataParallel) else model
    check_image_shape(image_shape)
    check_prepared_size(transform_ops, image_shape)
    if not model.parameters():
        raise LowbitError(f"{model_name} has no parameters: there is nothing to export")
    check_finite(model, model_name)
    with drafting(directory, f"the exported model to {directory}") as draft, eval_mode(model):
        images = np.random.default_rng(0).standard_normal((3, *image_shape), dtype=np.float32)
        logits = expected_logits(model, images, model_name, classes)
        spec = paddle.static.InputSpec([None, *image_shape], "float32", "x")
        with frozen(model):
            save_static(
                model, draft / file_name, [spec], lambda error: untranslatable(error, model, model_name)
            )
        _check_draft(draft, file_name, images, logits, model_name)
        describe_draft(
            draft,
            file_name,
            model_name=model_name,
            image_shape=image_shape,
            transform_ops=transform_ops,
            classes=classes,
            checkpoint=checkpoint,
            onednn=_onednn_agrees(draft, file_name, images, logits)
            and not (has_quantized_layers(model) and _onednn_is_far_slower(draft, file_name, images[:1])),
        )
        return publish(draft, directory, file_name)


def check_prepared_size(ops: Sequence[TransformOp], image_shape: tuple[int, int, int]) -> None:
    """Stop before a model is written that no image prepared by its own inference.yml would fit."""
    size = prepared_size(ops)
    if size is not None and size != image_shape[1:]:
        height, width = size
        raise LowbitError(
            f"the transform_ops make images of {format_shape((3, height, width))} (channels x height x "
            f"width), but the model is to be exported for {format_shape(image_shape)}; "
            f"set Global.image_shape=[3,{height},{width}]"
        )


def _check_draft(
    draft: Path, file_name: str, images: np.ndarray, logits: np.ndarray, model_name: str
) -> None:
    """Open what was written and compare: finds files cut short and Python that was frozen into a constant."""
    try:
        engine = PaddleEngine(draft, onednn=False, optimize=False, file_name=file_name)
    except LowbitError:
        if shutil.disk_usage(draft).free < _ALMOST_FULL:  # Paddle writes as much as fits and says nothing
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise
    for batch in (3, 1):
        if not agrees(engine.run(images[:batch]), logits[:batch], _TOLERANCE):
            raise LowbitError(
                f"{model_name} cannot be exported: the program answers differently from the model for a "
                f"batch of {batch}. forward probably computes a value in Python (a batch size, a number "
                "taken out of a tensor, a random number) that became a constant; nothing was written"
            )


def _onednn_agrees(draft: Path, file_name: str, images: np.ndarray, logits: np.ndarray) -> bool:
    """Whether oneDNN answers as the model does; some of its kernels write into their inputs."""
    return agrees(
        PaddleEngine(draft, onednn=True, file_name=file_name).run(images), logits, _ONEDNN_TOLERANCE
    )


def _onednn_is_far_slower(draft: Path, file_name: str, image: np.ndarray) -> bool:
    """Whether oneDNN takes many times as long as Paddle's own kernels, as it may with simulated quantization.

    For MobileNetV2 it takes 30 times as long. Runs alternate, and the fastest count: other programs on the
    machine must not decide.
    """
    engines = [PaddleEngine(draft, onednn=onednn, file_name=file_name) for onednn in (True, False)]
    taken = [_seconds(engine, image) for engine in engines]  # which also prepares
    if taken[0] < _SLOW:
        return False
    for _ in range(_ROUNDS):
        taken = [min(least, _seconds(engine, image)) for least, engine in zip(taken, engines, strict=True)]
    return taken[0] > _FAR_SLOWER * taken[1]


def _seconds(engine: PaddleEngine, images: np.ndarray) -> float:
    start = time.perf_counter()
    engine.run(images)
    return time.perf_counter() - start


def describe_draft(draft: Path, file_name: str, **description: Any) -> None:
    """Write the inference.yml of the draft's program and parameters, with their digests."""
    files = find_model_files(draft, file_name)
    digests = {path.name: sha256(path) for path in (files.model, files.params)}
    write_inference_yml(draft / f"{file_name}.yml", describe_inference(**description, sha256=digests))


def publish(draft: Path, directory: Path, file_name: str) -> ExportedModel:
    """The old program goes first, the new one comes last: there is never one with other parameters."""
    files = find_model_files(draft, file_name)
    params, yml, model = files.params.name, f"{file_name}.yml", files.model.name
    put_in_place(draft, directory, [params, yml, model], old=[file_name + end for end in MODEL_SUFFIXES])
    return ExportedModel(directory, directory / model, directory / params, directory / yml)
