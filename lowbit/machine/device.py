"""Which device to compute on: the requested one, checked against this Paddle build and machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lowbit.errors import LowbitError, did_you_mean


@dataclass(frozen=True)
class PaddleBuild:
    """The installed Paddle: its version, the CUDA it was built for (None: a CPU build), the cards it sees."""

    version: str
    commit: str
    cuda: str | None
    cudnn: str | None
    cards: int


@dataclass(frozen=True)
class Device:
    """A device in Paddle's words (for `paddle.set_device`); `note` says why it is not the asked one."""

    name: str
    note: str | None = None

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("gpu")

    @property
    def index(self) -> int | None:
        """The card's number; None for a CPU, and for `gpu`: there Paddle's launcher deals out the cards."""
        return int(self.name.split(":")[1]) if ":" in self.name else None

    def __str__(self) -> str:
        return self.name


def paddle_build() -> PaddleBuild:
    """Ask the installed Paddle. Imports it, which takes seconds the first time."""
    import paddle

    cuda = paddle.device.is_compiled_with_cuda()
    return PaddleBuild(
        version=paddle.__version__,
        commit=paddle.version.commit,
        cuda=str(paddle.version.cuda()) if cuda else None,
        cudnn=str(paddle.version.cudnn()) if cuda else None,
        cards=paddle.device.cuda.device_count() if cuda else 0,
    )


def resolve_device(name: str | None, *, insist: bool = True, build: PaddleBuild | None = None) -> Device:
    """The device to use for `cpu`, `gpu`, `gpu:0`, or None: the best there is.

    A GPU that is not there is an error, unless `insist` is False: a config file's `device: gpu` is often just
    what the file came with. Then the CPU is used and `note` is a line that says so, for the caller to print.

    >>> resolve_device("cpu").name
    'cpu'
    """
    wanted = None if name is None else name.strip().lower()
    if wanted == "cpu":
        return Device("cpu")
    if wanted is not None and not re.fullmatch(r"gpu(:\d+)?", wanted):
        raise LowbitError(f'unknown device "{name}", {did_you_mean(wanted, ["cpu", "gpu", "gpu:0"])}')
    build = build or paddle_build()
    if wanted is None:
        return Device("gpu" if build.cards else "cpu")
    missing = _why_missing(wanted, build)
    if missing is None:
        return Device(wanted)
    if not insist:
        return Device("cpu", note=f"device {wanted} is not available ({missing}): using cpu")
    raise LowbitError(
        f'device "{wanted}" is not available: {missing}. '
        + (f"Use gpu:0 to gpu:{build.cards - 1}, " if build.cards else "Use ")
        + "--device cpu (--use-gpu=False of infer.py), or leave the device out to get the best there is"
        + ("; a GPU needs the package paddlepaddle-gpu instead of paddlepaddle" if build.cuda is None else "")
    )


def _why_missing(wanted: str, build: PaddleBuild) -> str | None:
    if build.cuda is None:
        return f"the installed Paddle {build.version} is a CPU build"
    if build.cards == 0:
        return f"Paddle {build.version} (CUDA {build.cuda}) sees no card"
    index = Device(wanted).index
    if index is not None and index >= build.cards:
        return f"Paddle {build.version} sees {build.cards} card{'s' * (build.cards > 1)}"
    return None


def math_threads() -> int:
    """Threads that training computes with: OMP_NUM_THREADS, which Paddle's import sets to 1 if unset."""
    import paddle  # noqa: F401  (for what its import does to the environment)

    return int(os.environ["OMP_NUM_THREADS"])


def set_math_threads(threads: int) -> None:
    """Set the number of threads of Paddle's libraries and lowbit's kernels, which share a pool."""
    from paddle.base import core

    os.environ["OMP_NUM_THREADS"] = str(threads)
    core.set_num_threads(threads)


@contextmanager
def math_threads_kept() -> Iterator[None]:
    """Undo what Paddle Inference does: every run of a predictor leaves the whole process with 1 thread.

    Without this, training that continues after an export in the same process would be slower and would differ
    in the last bits from one without the export.
    """
    from paddle.base import core

    threads = math_threads()
    try:
        yield
    finally:
        core.set_num_threads(threads)
