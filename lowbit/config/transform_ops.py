"""The image operations a config may list under `transform_ops`, with PaddleClas's names and keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, field_validator, model_validator

from lowbit.config.base import Count, Number, Positive, Section
from lowbit.errors import did_you_mean

Interpolation = Literal["nearest", "bilinear", "bicubic", "area", "lanczos"]


def _check_size(value: Any) -> Any:
    sides = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f"expected a whole number above 0, or two as [width, height], got {value!r}")
    return value


Size = Annotated[int | tuple[int, int], BeforeValidator(_check_size)]
Probability = Annotated[Number, Field(ge=0, le=1)]


class TransformOp(Section):
    """One image operation; the class's name is its name in the config."""


class DecodeImage(TransformOp):
    """Bytes to an RGB image. Always done first; in a list it is a reminder for the reader."""

    to_rgb: Literal[True] = True
    to_np: bool = False
    channel_first: Literal[False] = False
    backend: Literal["cv2", "pil"] | None = None


class RandCropImage(TransformOp):
    """A random area of a random shape, resized to `size`: ImageNet's training crop."""

    size: Size
    scale: tuple[Number, Number] = (0.08, 1.0)
    ratio: tuple[Number, Number] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    backend: Literal["cv2", "pil"] | None = None
    use_log_aspect: bool = True


class RandomCropImage(TransformOp):
    """A `size` window at a random place of the image padded by `padding`: CIFAR's training crop."""

    size: Size
    padding: Count = 0


class RandFlipImage(TransformOp):
    """A mirror image with probability `prob`. `flip_code` as in OpenCV: 1 left-right, 0 top-bottom."""

    flip_code: Literal[1, 0, -1] = 1
    prob: Probability = 0.5


class ResizeImage(TransformOp):
    """The short side becomes `resize_short`, or the whole image `size` ([width, height])."""

    resize_short: Positive | None = None
    size: Size | None = None
    interpolation: Interpolation = "bilinear"
    backend: Literal["cv2", "pil"] | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> ResizeImage:
        if (self.resize_short is None) == (self.size is None):
            raise ValueError("give either resize_short or size")
        return self


class CropImage(TransformOp):
    """The centre `size` window."""

    size: Size


class AutoAugment(TransformOp):
    """The ImageNet, CIFAR-10 or SVHN policy of AutoAugment (Cubuk et al., 2019)."""

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"


class NormalizeImage(TransformOp):
    """(x · scale - mean) / std, per channel, in fp32."""

    scale: Number = 1 / 255
    mean: list[Number] = [0.485, 0.456, 0.406]
    std: list[Number] = [0.229, 0.224, 0.225]
    order: Literal["", "hwc", "chw"] = ""
    output_fp16: Literal[False] = False
    channel_num: Literal[3] = 3

    @field_validator("std")
    @classmethod
    def _positive(cls, std: list[float]) -> list[float]:
        if min(std, default=0) <= 0:
            raise ValueError("every std must be positive")
        return std


class RandomErasing(TransformOp):
    """With probability EPSILON, blank a random rectangle (Zhong et al., 2017); after NormalizeImage."""

    EPSILON: Probability = 0.5
    sl: Probability = 0.02
    sh: Probability = 0.33
    r1: Annotated[Number, Field(gt=0)] = 0.3
    attempt: Positive = 10
    use_log_aspect: bool = True
    mode: Literal["const", "pixel"] = "const"


class ToCHWImage(TransformOp):
    """Channels first. Always done last; in a list it is a reminder for the reader."""


OPS: dict[str, type[TransformOp]] = {op.__name__: op for op in TransformOp.__subclasses__()}


def parse_op(entry: Any) -> TransformOp:
    """`{"CropImage": {"size": 224}}` as the object that describes it.

    >>> parse_op({"CropImage": {"size": 224}})
    CropImage(size=224)
    """
    if isinstance(entry, TransformOp):
        return entry
    if isinstance(entry, str):  # `- ToCHWImage` without a colon
        entry = {entry: None}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"expected one operation such as `CropImage: {{size: 224}}`, got {entry!r}")
    ((name, arguments),) = entry.items()
    if name not in OPS:
        raise ValueError(f'unknown operation "{name}", {did_you_mean(str(name), OPS)}')
    return OPS[name].model_validate(arguments)


def dump_op(op: TransformOp) -> dict[str, dict[str, Any]]:
    """The config form of an operation, for `config.yaml` and `inference.yml`."""
    return {type(op).__name__: op.model_dump(mode="json", exclude_defaults=False)}


def prepared_size(ops: Sequence[TransformOp]) -> tuple[int, int] | None:
    """Height and width of every image after these operations; None where they depend on the image.

    >>> prepared_size([ResizeImage(resize_short=256), CropImage(size=224)])
    (224, 224)
    """
    sizing = (CropImage, RandCropImage, RandomCropImage, ResizeImage)
    size = next((op.size for op in reversed(ops) if isinstance(op, sizing)), None)
    if size is None:
        return None
    width, height = (size, size) if isinstance(size, int) else size
    return height, width


Op = Annotated[TransformOp, BeforeValidator(parse_op), PlainSerializer(dump_op)]
