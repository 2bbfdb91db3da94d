"""Carries out the image operations of a config: uint8 RGB in, normalised float32 CHW out.

An operation is a function of the image and an explicit random generator, so that a sample depends on its seed
and on nothing else. Sizes are one number or [width, height], as in PaddleClas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import cv2
import numpy as np
from PIL import Image

from lowbit.config import transform_ops as specs
from lowbit.config.transform_ops import TransformOp
from lowbit.data import image_ops
from lowbit.data.auto_augment import auto_augment
from lowbit.data.erasing import ERASERS
from lowbit.data.rand_augment import augmix, rand_augment, timm_augment
from lowbit.errors import LowbitError

# The loader's threads share out the images; OpenCV's own threads inside one image would get in their way.
cv2.setNumThreads(0)

Step = Callable[[np.ndarray, np.random.Generator], np.ndarray]
_CV2 = {
    "nearest": cv2.INTER_NEAREST,
    "bilinear": cv2.INTER_LINEAR,
    "bicubic": cv2.INTER_CUBIC,
    "area": cv2.INTER_AREA,
    "lanczos": cv2.INTER_LANCZOS4,
}
_PIL = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "area": Image.Resampling.BOX,
    "lanczos": Image.Resampling.LANCZOS,
}


class Transform:
    """Operations in order: those on pixels, then the change to normalised float32 CHW, then those on floats.

    Call it with an image, a generator and, to save a copy, the array to write to. `at_least` is the size
    (height, width) below which a decoder may not shrink an image on the way in.
    """

    def __init__(self, ops: Sequence[TransformOp]) -> None:
        self.ops = list(ops)
        _check_order(self.ops)
        pixel_ops = [op for op in self.ops if not isinstance(op, _NOT_ON_PIXELS)]
        self._pixel_steps = [_STEPS[type(op)](op) for op in pixel_ops]
        if any(isinstance(op, specs.DecodeImage) and not op.to_rgb for op in self.ops):
            self._pixel_steps.insert(0, lambda image, rng: cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
        self._erasing = [ERASERS[type(op)](op) for op in self.ops if type(op) in ERASERS]
        normalize = next((op for op in self.ops if isinstance(op, specs.NormalizeImage)), None)
        self._tables = _normalize_tables(normalize)
        self.at_least = _at_least(pixel_ops)

    def __call__(
        self, image: np.ndarray, rng: np.random.Generator, out: np.ndarray | None = None
    ) -> np.ndarray:
        for step in self._pixel_steps:
            image = step(image, rng)
        height, width = image.shape[:2]
        if out is None:
            out = np.empty((3, height, width), np.float32)
        elif out.shape != (3, height, width):
            raise LowbitError(
                f"becomes {width}x{height} where the first image became {out.shape[2]}x{out.shape[1]}; "
                "a batch needs one size, so use an operation that fixes it "
                "(RandCropImage, CropImage, ResizeImage with size)"
            )
        for plane, values, table in zip(out, cv2.split(image), self._tables, strict=True):
            cv2.LUT(values, table, dst=plane)
        for erase in self._erasing:
            erase(out, rng)
        return out

    def at_size(self, size: tuple[int, int]) -> Transform:
        """The same operations with images of another size, [width, height]."""
        ops = [op.model_copy(update={"size": size}) if isinstance(op, _SIZED) else op for op in self.ops]
        return Transform([op for op in ops if not isinstance(op, specs.ResizeImage) or op.size is not None])


def compose(ops: Sequence[TransformOp]) -> Transform:
    """The operations of a config as one function.

    >>> transform = compose([specs.CropImage(size=8), specs.NormalizeImage()])
    >>> transform(np.zeros((10, 12, 3), np.uint8), np.random.default_rng(0)).shape
    (3, 8, 8)
    """
    return Transform(ops)


_NOT_ON_PIXELS = (specs.DecodeImage, specs.NormalizeImage, specs.ToCHWImage, *ERASERS)
_SIZED = (specs.RandCropImage, specs.RandCropImageV2, specs.RandomCropImage, specs.CropImage)


def _check_order(ops: list[TransformOp]) -> None:
    names = [type(op).__name__ for op in ops]
    for name in ("DecodeImage", "NormalizeImage", "ToCHWImage"):
        if names.count(name) > 1:
            raise LowbitError(f"transform_ops: {name} is listed {names.count(name)} times; once is enough")
    if "DecodeImage" in names[1:]:
        raise LowbitError("transform_ops: DecodeImage must come first")
    normalized = names.index("NormalizeImage") if "NormalizeImage" in names else len(names)
    for place, op in enumerate(ops):
        if place > normalized and not isinstance(op, _NOT_ON_PIXELS):
            raise LowbitError(f"transform_ops: {names[place]} works on pixels; put it before NormalizeImage")
        if place < normalized and type(op) in ERASERS:
            raise LowbitError(
                f"transform_ops: {names[place]} works on normalised values; put it after NormalizeImage"
            )


def _normalize_tables(op: specs.NormalizeImage | None) -> list[np.ndarray]:
    """The float32 of each of the 256 values, per channel: exact, and faster than arithmetic on the image."""
    values = np.arange(256, dtype=np.float64)
    if op is None:
        return [values.astype(np.float32)] * 3
    if len(op.mean) != 3 or len(op.std) != 3:
        raise LowbitError(
            f"NormalizeImage: mean and std need 3 values each, got {len(op.mean)} and {len(op.std)}"
        )
    return [
        ((values * op.scale - mean) / std).astype(np.float32)
        for mean, std in zip(op.mean, op.std, strict=True)
    ]


def _at_least(pixel_ops: list[TransformOp]) -> tuple[int, int] | None:
    """A training crop of a 12-megapixel photo needs only a quarter of its pixels, and decodes 1.5x faster so.

    Only for a random crop, which is random anyway: evaluation and deployment must see the same pixels.
    """
    if not pixel_ops or not isinstance(pixel_ops[0], specs.RandCropImage):
        return None
    op = pixel_ops[0]
    # Even the smallest box the crop can draw then has as many pixels as the result.
    side = math.ceil(max(_width_height(op.size)) / math.sqrt(op.scale[0] * min(op.ratio[0], 1 / op.ratio[1])))
    return side, side


def _width_height(size: specs.Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _drawn(interpolation: str, rng: np.random.Generator) -> str:
    return ("bilinear", "bicubic")[int(rng.integers(2))] if interpolation == "random" else interpolation


def _resize(image: np.ndarray, size: tuple[int, int], interpolation: str, backend: str | None) -> np.ndarray:
    if size == (image.shape[1], image.shape[0]):
        return image
    if backend == "pil":  # averages over all pixels when shrinking, where OpenCV's bilinear looks at four
        return np.array(Image.fromarray(image).resize(size, _PIL[interpolation]))
    return cv2.resize(image, size, interpolation=_CV2[interpolation])


def _rand_crop(op: specs.RandCropImage) -> Step:
    size = _width_height(op.size)
    if not 0 < op.scale[0] <= op.scale[1] <= 1:
        raise LowbitError(f"RandCropImage: scale {list(op.scale)} must be two growing numbers within 0..1")
    if not 0 < op.ratio[0] <= op.ratio[1]:
        raise LowbitError(f"RandCropImage: ratio {list(op.ratio)} must be two growing numbers above 0")

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        left, top, width, height = draw_box(image.shape[1], image.shape[0], op, rng)
        box = image[top : top + height, left : left + width]
        return _resize(box, size, _drawn(op.interpolation, rng), op.backend)

    return step


def draw_box(
    width: int, height: int, op: specs.RandCropImage, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Left, top, width, height of a random box: first its shape, then an area that fits with that shape."""
    if op.use_log_aspect:
        ratio = math.exp(rng.uniform(math.log(op.ratio[0]), math.log(op.ratio[1])))
    else:
        ratio = rng.uniform(*op.ratio)
    # A box of ratio r and area a (1 = the image) fits if sqrt(a·W·H·r) <= W and sqrt(a·W·H/r) <= H.
    largest = min(1.0, width / (height * ratio), height * ratio / width)
    upper = min(op.scale[1], largest)
    area = rng.uniform(min(op.scale[0], upper), upper) * width * height
    box_width = min(max(round(math.sqrt(area * ratio)), 1), width)
    box_height = min(max(round(math.sqrt(area / ratio)), 1), height)
    left = int(rng.integers(width - box_width + 1))
    top = int(rng.integers(height - box_height + 1))
    return left, top, box_width, box_height


def _random_crop(op: specs.RandomCropImage | specs.RandCropImageV2) -> Step:
    width, height = _width_height(op.size)
    pad = op.padding if isinstance(op, specs.RandomCropImage) else 0

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if pad:
            image = cv2.copyMakeBorder(image, pad, pad, pad, pad, cv2.BORDER_CONSTANT, value=(0, 0, 0))
        _check_covers(image, width, height, type(op).__name__)
        left = int(rng.integers(image.shape[1] - width + 1))
        top = int(rng.integers(image.shape[0] - height + 1))
        return image[top : top + height, left : left + width]

    return step


def _flip(op: specs.RandFlipImage) -> Step:
    return lambda image, rng: cv2.flip(image, op.flip_code) if rng.random() < op.prob else image


def _resize_image(op: specs.ResizeImage) -> Step:
    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if op.size is not None:
            size = _width_height(op.size)
        else:
            height, width = image.shape[:2]
            factor = op.resize_short / min(height, width)
            size = (max(1, round(width * factor)), max(1, round(height * factor)))
        return _resize(image, size, op.interpolation, op.backend)

    return step


def _center_crop(op: specs.CropImage) -> Step:
    width, height = _width_height(op.size)

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        _check_covers(image, width, height, "CropImage")
        left = (image.shape[1] - width) // 2
        top = (image.shape[0] - height) // 2
        return image[top : top + height, left : left + width]

    return step


def _crop_at_ratio(op: specs.CropImageAtRatio) -> Step:
    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        side = max(1, int(op.size / (op.size + op.pad) * min(image.shape[:2])))
        top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
        box = image[top : top + side, left : left + side]
        return _resize(box, (op.size, op.size), op.interpolation, None)

    return step


def _check_covers(image: np.ndarray, width: int, height: int, name: str) -> None:
    if image.shape[1] < width or image.shape[0] < height:
        raise LowbitError(
            f"{name} cannot take {width}x{height} out of {image.shape[1]}x{image.shape[0]}; "
            "put a ResizeImage before it"
        )


def _color_jitter(op: specs.ColorJitter) -> Step:
    changes = [
        (image_ops.brightness, _range(op.brightness, 1.0)),
        (image_ops.contrast, _range(op.contrast, 1.0)),
        (image_ops.color, _range(op.saturation, 1.0)),
        (image_ops.hue, _range(op.hue, 0.0)),
    ]
    changes = [(change, limits) for change, limits in changes if limits is not None]

    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() >= op.prob:
            return image
        for number in rng.permutation(len(changes)):
            change, limits = changes[number]
            image = change(image, rng.uniform(*limits))
        return image

    return step


def _range(amount: float | tuple[float, float], neutral: float) -> tuple[float, float] | None:
    """The limits that an amount stands for; None where it changes nothing."""
    if isinstance(amount, tuple):
        return amount
    low = neutral - amount if neutral == 0 else max(0.0, neutral - amount)
    return (low, neutral + amount) if amount else None


def _grayscale(op: specs.RandomGrayscale) -> Step:
    return lambda image, rng: image_ops.greyscale(image) if rng.random() < op.p else image


# The principal components of ImageNet's colours, each times the root of its share of the variance.
_COMPONENTS = np.array(
    [[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]]
) * [0.2175, 0.0188, 0.0045]


def _pca_lighting(op: specs.PCALighting) -> Step:
    def step(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        # Values of 0 to 1 in the paper, of 0 to 255 here.
        shift = 255 * (_COMPONENTS @ rng.normal(0, 0.1, 3))
        return np.clip(np.rint(image + shift), 0, 255).astype(np.uint8)

    return step


_STEPS: dict[type[TransformOp], Callable[..., Step]] = {
    specs.RandCropImage: _rand_crop,
    specs.RandomCropImage: _random_crop,
    specs.RandFlipImage: _flip,
    specs.ResizeImage: _resize_image,
    specs.CropImage: _center_crop,
    specs.RandCropImageV2: _random_crop,
    specs.CropImageAtRatio: _crop_at_ratio,
    specs.ColorJitter: _color_jitter,
    specs.RandomGrayscale: _grayscale,
    specs.PCALighting: _pca_lighting,
    specs.AutoAugment: auto_augment,
    specs.RandAugment: rand_augment,
    specs.RandAugmentV2: rand_augment,
    specs.RandAugmentV3: rand_augment,
    specs.TimmAutoAugment: timm_augment,
    specs.AugMix: augmix,
}
