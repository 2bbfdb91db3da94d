"""From a trained model to the files that are served: program, parameters, and how to use them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from lowbit.config.transform_ops import TransformOp, prepared_size
from lowbit.deploy.draft import agrees, check_finite, drafting, put_in_place, save_static
from lowbit.deploy.engines.engine import format_shape
from lowbit.deploy.engines.paddle_engine import PaddleEngine
from lowbit.deploy.expected import check_image_shape, expected_logits, untranslatable
from lowbit.deploy.inference_yml import describe_inference, write_inference_yml
from lowbit.deploy.model_files import MODEL_SUFFIXES, find_model_files, sha256
from lowbit.errors import LowbitError
from lowbit.layers import eval_mode, frozen

# The exported program runs the same kernels as the model when nothing is merged; only sums over another
# number of threads may differ.
_TOLERANCE = 1e-4
_ONEDNN_TOLERANCE = 1e-3  # it merges operators and adds in another order
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
            onednn=_agrees_under_onednn(draft, file_name, images, logits),
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


def _agrees_under_onednn(draft: Path, file_name: str, images: np.ndarray, logits: np.ndarray) -> bool:
    """Whether oneDNN may serve the model; its kernels have bugs, such as dividing their input in place."""
    engine = PaddleEngine(draft, onednn=True, file_name=file_name)
    return agrees(engine.run(images), logits, _ONEDNN_TOLERANCE)


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
