"""Lite data: 16 training and 16 validation images that are drawn here, for trying a whole run in seconds.

Four classes, each a shape and colour on a noisy background, so that a small network
learns them in a few steps. The same bytes every time: nothing depends on the clock, the user or the order.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg

from lowbit.errors import LowbitError

TAR_NAME = "lite_data.tar"
_TAR_ROOT = "lite_data"
_PER_CLASS = 4
_HEIGHT, _WIDTH = 240, 320
_SEED = 16

# x and y are 0 at the shape's centre and 1 at its edge.
Shape = Callable[[np.ndarray, np.ndarray], np.ndarray]
CLASSES: dict[str, tuple[tuple[int, int, int], Shape]] = {
    "circle": ((220, 60, 50), lambda x, y: x**2 + y**2 < 1),
    "cross": (
        (60, 190, 80),
        lambda x, y: (np.minimum(abs(x), abs(y)) < 0.3) & (np.maximum(abs(x), abs(y)) < 1),
    ),
    "square": ((60, 90, 220), lambda x, y: np.maximum(abs(x), abs(y)) < 0.9),
    "triangle": ((230, 200, 50), lambda x, y: (y < 0.9) & (abs(x) < (y + 1) / 1.9)),
}


def write_lite_data(directory: str | Path, *, tar: bool = True) -> Path:
    """Write `train/`, `val/`, `train_list.txt` and `val_list.txt` into `directory`, and the same packed
    as `lite_data.tar` beside them; returns the directory, which `open_dataset` reads.

    >>> sorted(path.name for path in write_lite_data("lite_data").iterdir())  # doctest: +SKIP
    ['lite_data.tar', 'train', 'train_list.txt', 'val', 'val_list.txt']
    """
    directory = Path(directory)
    files = lite_files()
    if tar:
        files[TAR_NAME] = _pack(files)
    try:
        for name, data in files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    except OSError as error:
        raise LowbitError(f"cannot write the lite data to {directory}: {error.strerror}") from error
    return directory


def lite_files() -> dict[str, bytes]:
    """The files of the lite data by their paths, sorted."""
    files: dict[str, bytes] = {}
    for split in ("train", "val"):
        lines = []
        for label, name in enumerate(CLASSES):
            for number in range(_PER_CLASS):
                path = f"{split}/{name}/{name}_{number}.jpg"
                pixels = _draw(name, split == "val", label * _PER_CLASS + number)
                files[path] = simplejpeg.encode_jpeg(
                    pixels, quality=90, colorspace="RGB", colorsubsampling="420"
                )
                lines.append(f"{path} {label}\n")
        files[f"{split}_list.txt"] = "".join(lines).encode()
    return dict(sorted(files.items()))


def _draw(name: str, is_validation: bool, number: int) -> np.ndarray:
    rng = np.random.Generator(np.random.Philox(key=[_SEED, int(is_validation)], counter=[0, 0, 0, number]))
    colour, shape = CLASSES[name]
    radius = rng.uniform(70, 105)
    center_x = _WIDTH / 2 + rng.uniform(-30, 30)
    center_y = _HEIGHT / 2 + rng.uniform(-10, 10)
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    inside = shape((x - center_x) / radius, (y - center_y) / radius)
    ground = rng.uniform(70, 170) + rng.uniform(-0.15, 0.15) * (x - _WIDTH / 2)
    image = np.where(inside[:, :, None], np.array(colour), ground[:, :, None])
    image = image * rng.uniform(0.85, 1.1) + rng.normal(0, 6, image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _pack(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{_TAR_ROOT}/{name}")  # its defaults: time 0, no owner, mode 644
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()
