"""A model is written as a draft, compared, and only then put in place: what every format of export does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import paddle
from paddle import nn
from paddle.static import InputSpec

from lowbit.errors import LowbitError
from lowbit.models import not_finite


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
    """`paddle.jit.save`; whatever Paddle meets while it translates the model's Python is explained."""
    try:
        paddle.jit.save(model, str(prefix), input_spec=list(specs))
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
