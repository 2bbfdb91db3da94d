"""The bytes of an image file to RGB pixels, or an error that says what is wrong with them.

JPEG goes through simplejpeg (libjpeg-turbo): 1.3 to 1.4x Pillow's speed and level with OpenCV's, but it says
what is wrong with a file, and treats every warning of the decoder as an error, so a truncated file is never
a half grey image. Everything else, and CMYK JPEG, goes through Pillow, which is within a tenth of OpenCV's
speed there and tells truncated files from whole ones. What comes out:

- the orientation in the EXIF data is applied: the picture is upright, as a viewer and PaddleClas show it;
- greyscale, palette and CMYK become RGB; transparency is dropped; 16 bits keep their upper 8;
- of an animation, the first frame.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
import simplejpeg
from PIL import Image

from lowbit.data.dataset import BadImageError
from lowbit.files import open_regular

# The formats a photo comes in. Pillow knows more, some of which start other programs (EPS).
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
MAX_PIXELS = 178_956_970  # Pillow's limit for images that are not bombs
_MAX_BYTES = 2**30  # of a file: MAX_PIXELS without compression take half of it
_ORIENTATION = 0x0112

# About EXIF data and sizes; what matters is raised. Once and for all: with `catch_warnings` around each
# image, threads put back each other's filters and leave every later warning of the process silenced.
warnings.filterwarnings("ignore", module=r"PIL\..*")


def read_image(path: str, at_least: tuple[int, int] | None = None) -> np.ndarray:
    """The image in a file; a missing or damaged one is a BadImageError that names it."""
    try:
        with open_regular(path, most=_MAX_BYTES) as file:
            data = file.read()
    except OSError as error:
        raise BadImageError(str(path), f"cannot be read ({error.strerror})") from error
    return decode(data, str(path), at_least)


def decode(data: bytes, name: str, at_least: tuple[int, int] | None = None) -> np.ndarray:
    """HWC uint8 RGB. `at_least` (height, width) lets a large JPEG be decoded at 1/2, 1/4 or 1/8 of its size.

    >>> decode(open("cat.jpg", "rb").read(), "cat.jpg").shape  # doctest: +SKIP
    (375, 500, 3)
    """
    if not data:
        raise BadImageError(name, "the file is empty")
    try:
        size = _jpeg_size(data) if data.startswith(b"\xff\xd8\xff") else None
        if size is not None:
            return _upright(_decode_jpeg(data, *size, at_least), _jpeg_orientation(data))
        return _decode_with_pillow(data)
    except MemoryError as error:
        raise BadImageError(name, "does not fit into memory") from error
    except (ValueError, OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise BadImageError(name, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return f"not an image of a known format ({', '.join(FORMATS)})"
    return f"corrupt or truncated image ({error})"


def _check_size(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise ValueError(f"{width}x{height} is more than {MAX_PIXELS} pixels")


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Height and width of a JPEG that simplejpeg can make RGB of; None for the kinds left to Pillow."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        if "subsampling" in str(error):  # a rare ratio of colour to brightness that TurboJPEG has no name for
            return None
        raise
    _check_size(height, width)
    return None if colours in ("CMYK", "YCCK") else (height, width)


def _decode_jpeg(data: bytes, height: int, width: int, at_least: tuple[int, int] | None) -> np.ndarray:
    # Only the powers of two have fast inverse transforms: 5/8, 6/8 and 7/8 take longer than the whole image.
    halvings = 0
    if at_least is not None:
        smallest = min(height, width)  # the sides may still be swapped by the orientation
        while halvings < 3 and smallest >> (halvings + 1) >= max(at_least):
            halvings += 1
    if halvings == 0:
        return simplejpeg.decode_jpeg(data, "RGB", strict=True)
    factor = 1 << halvings
    return simplejpeg.decode_jpeg(
        data, "RGB", min_height=height // factor, min_width=width // factor, min_factor=1, strict=True
    )


def _jpeg_orientation(data: bytes) -> int:
    # Searching for the marker costs a microsecond; Pillow then parses the few files that have it.
    if b"Exif\0\0" not in data[:4096]:
        return 1
    return _orientation(Image.open(io.BytesIO(data), formats=("JPEG",)))


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION, 1))
    except (SyntaxError, TypeError, ValueError, OSError, KeyError):
        return 1  # damaged EXIF data does not damage the picture


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Undo the camera's rotation and mirroring, which EXIF numbers 1 to 8."""
    if not 2 <= orientation <= 8:
        return image
    if orientation >= 5:
        image = image.transpose(1, 0, 2)
    if orientation in (3, 4, 7, 8):
        image = image[::-1]
    if orientation in (2, 3, 6, 7):
        image = image[:, ::-1]
    return np.ascontiguousarray(image)


def _decode_with_pillow(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        _check_size(image.height, image.width)
        orientation = _orientation(image)
        image.seek(0)
        image.load()
        return _upright(_to_rgb(image), orientation)


def _to_rgb(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16"):  # convert() would clip at 255
        grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no defined range; save it with 8 or 16 bits")
    return np.array(image.convert("RGB"))
