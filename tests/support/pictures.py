"""Images to test with: a picture in which every corner has a colour of its own, and files made of it."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image


def picture(height: int = 48, width: int = 64) -> np.ndarray:
    """Red grows to the right, green downwards, blue is low: smooth, so that JPEG hardly changes it."""
    y, x = np.mgrid[:height, :width]
    red, green = x * 255 // (width - 1), y * 255 // (height - 1)
    return np.stack([red, green, np.full_like(x, 40)], axis=2).astype(np.uint8)


def encoded(image: Image.Image | np.ndarray, kind: str, **options) -> bytes:
    file = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(file, kind, **options)
    return file.getvalue()


def idx_file(array: np.ndarray) -> bytes:
    """An array of bytes in the format of MNIST's files."""
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()
