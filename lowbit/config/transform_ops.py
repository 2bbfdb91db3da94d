"""The image operations a config may list under `transform_ops`, with PaddleClas's names and keys."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    PlainSerializer,
    ValidationError,
    field_validator,
    model_validator,
)

from lowbit.config.base import Count, Number, Positive, Section, parse_number
from lowbit.errors import did_you_mean

SectionType = TypeVar("SectionType", bound=Section)

Interpolation = Literal["nearest", "bilinear", "bicubic", "area", "lanczos"]
DrawnInterpolation = Interpolation | Literal["random"]  # random: bilinear or bicubic, drawn for each image
Rgb = tuple[
    Annotated[int, Field(ge=0, le=255)],
    Annotated[int, Field(ge=0, le=255)],
    Annotated[int, Field(ge=0, le=255)],
]


def _check_size(value: Any) -> Any:
    sides = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise ValueError(f"expected a whole number above 0, or two as [width, height], got {value!r}")
    return value


Size = Annotated[int | tuple[int, int], BeforeValidator(_check_size)]
Probability = Annotated[Number, Field(ge=0, le=1)]
Backend = Annotated[
    Literal["cv2", "pil"] | None,
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]


def _amount(value: Any) -> Any:
    """The range of a factor: a number as it is, a pair in ascending order."""
    if isinstance(value, list | tuple):
        low, high = (parse_number(side) for side in value) if len(value) == 2 else (1, 0)
        if not 0 <= low <= high:
            raise ValueError(f"expected a number of 0 or more, or two ascending ones, got {value!r}")
        return (low, high)
    return parse_number(value)


Amount = Annotated[Annotated[float, Field(ge=0)] | tuple[float, float], BeforeValidator(_amount)]


class TransformOp(Section):
    """One image operation; the class's name is its name in the config."""


class DecodeImage(TransformOp):
    """Bytes to an image. Always done first; in a list it says the order of the channels."""

    to_rgb: bool = True  # false: the order of the channels is blue, green, red
    to_np: bool = False
    channel_first: Literal[False] = False
    backend: Backend = None


class RandCropImage(TransformOp):
    """A random area of a random shape, resized to `size`: ImageNet's training crop."""

    size: Size
    scale: tuple[Number, Number] = (0.08, 1.0)
    ratio: tuple[Number, Number] = (3 / 4, 4 / 3)
    interpolation: DrawnInterpolation = "bilinear"
    backend: Backend = None
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
    backend: Backend = None

    @model_validator(mode="after")
    def _one_of_two(self) -> ResizeImage:
        if (self.resize_short is None) == (self.size is None):
            raise ValueError("give either resize_short or size")
        return self


class CropImage(TransformOp):
    """The centre `size` window."""

    size: Size


class CropImageAtRatio(TransformOp):
    """The centre square of size / (size + pad) of the short side, resized to `size`: EfficientNet's."""

    size: Positive
    pad: Count
    interpolation: Interpolation = "bilinear"


class RandCropImageV2(TransformOp):
    """A `size` window at a random place, without resizing."""

    size: Size


class ColorJitter(TransformOp):
    """Brightness, contrast, saturation and hue, each drawn around its neutral value, in a random order.

    A number x stands for factors of 1 - x to 1 + x (hue: shifts of -x to x of the circle), a pair for itself.
    """

    prob: Annotated[Number, Field(ge=0)] = 1.0  # PaddleClas's default is 2: always
    brightness: Amount = 0.0
    contrast: Amount = 0.0
    saturation: Amount = 0.0
    hue: Amount = 0.0


class RandomGrayscale(TransformOp):
    """A grey image of three equal channels, with probability `p`."""

    p: Probability = 0.1


class PCALighting(TransformOp):
    """AlexNet's noise along the principal components of ImageNet's colours."""


class AutoAugment(TransformOp):
    """The ImageNet, CIFAR-10 or SVHN policy of AutoAugment (Cubuk et al., 2019)."""

    policy: Literal["imagenet", "cifar10", "svhn"] = "imagenet"


class RandAugment(TransformOp):
    """`num_layers` random operations, each at the same magnitude of 0 to 10 (Cubuk et al., 2020)."""

    num_layers: Positive = 2
    magnitude: Annotated[Number, Field(ge=0)] = 5.0
    fillcolor: Rgb = (128, 128, 128)


class RandAugmentV2(TransformOp):
    """PaddleClas's variant for EfficientNetV2: other ranges, and also cutout and solarize-add."""

    num_layers: Positive = 2
    magnitude: Annotated[Number, Field(ge=0)] = 5.0
    fillcolor: Rgb = (128, 128, 128)


class RandAugmentV3(TransformOp):
    """PaddleClas's variant for MobileViTV2: black where an image was moved away, milder posterize."""

    num_layers: Positive = 2
    magnitude: Annotated[Number, Field(ge=0)] = 3.0
    fillcolor: Rgb = (0, 0, 0)
    interpolation: Interpolation = "bicubic"


class TimmAutoAugment(TransformOp):
    """timm's RandAugment (`rand-m9-mstd0.5-inc1`) or AugMix (`augmix-m5-w4-d2`); null: none.

    `m` magnitude, `n` operations per image, `mstd` noise of the magnitude, `inc1` operations that grow with
    the magnitude, `w0` weights of the operations; of AugMix, `w` chains of depth `d` and `a` of its mixture.
    """

    prob: Probability = 1.0
    config_str: str | None = "rand-m9-mstd0.5-inc1"
    interpolation: DrawnInterpolation = "bicubic"
    img_size: Size = 224
    mean: tuple[Probability, Probability, Probability] = (0.485, 0.456, 0.406)

    @field_validator("config_str")
    @classmethod
    def _known_words(cls, text: str | None) -> str | None:
        if text is not None:
            parse_timm(text)
        return text


class AugMix(TransformOp):
    """The image blended with a mixture of chains of operations (Hendrycks et al., 2020).

    `mixture_depth` operations a chain, -1: 1 to 3; each at a level drawn up to `aug_severity` of 10.
    """

    prob: Probability = 0.5
    aug_prob_coeff: Annotated[Number, Field(gt=0)] = 0.1
    mixture_width: Annotated[Count, Field(ge=1)] = 3
    mixture_depth: Literal[-1] | Annotated[Count, Field(ge=1)] = 1
    aug_severity: Annotated[Number, Field(gt=0, le=10)] = 1.0


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
    sh: Probability = 0.4
    r1: Annotated[Number, Field(gt=0)] = 0.3
    attempt: Positive = 100
    use_log_aspect: bool = False
    mode: Literal["const", "rand", "pixel"] = "const"  # zeros, one random colour, noise
    mean: tuple[Number, Number, Number] = (0.0, 0.0, 0.0)  # of const


class Cutout(TransformOp):
    """`n_holes` squares of `length` become zeros (DeVries and Taylor, 2017); after NormalizeImage."""

    n_holes: Positive = 1
    length: Positive = 112


class GridMask(TransformOp):
    """A grid of squares becomes zeros (Chen et al., 2020); after NormalizeImage.

    The grid's period is drawn from d1 to d2, stripes of `ratio` of it are hidden; it is turned by less than
    `rotate` degrees.
    """

    d1: Positive = 96
    d2: Positive = 224
    rotate: Positive = 1
    ratio: Probability = 0.5
    mode: Literal[0, 1] = 0  # 1: what 0 would keep becomes zeros
    prob: Probability = 1.0

    @model_validator(mode="after")
    def _growing(self) -> GridMask:
        if self.d1 >= self.d2:
            raise ValueError(f"d1 ({self.d1}) must be below d2 ({self.d2})")
        return self


class HideAndSeek(TransformOp):
    """Patches of a random size become zeros, each with probability 0.5; after NormalizeImage."""


class ToCHWImage(TransformOp):
    """Channels first. Always done last; in a list it is a reminder for the reader."""


class TimmPolicy(Section):
    """What a `config_str` of TimmAutoAugment says, in words."""

    kind: Literal["rand", "augmix"]
    magnitude: float  # of 10, which is the most that is applied
    noise: Annotated[float, Field(ge=0)] = 0.0
    layers: Positive = 2  # of rand
    increasing: bool = False
    weighted: bool = False
    width: Positive = 3  # of augmix
    depth: int = -1  # -1: drawn from 1 to 3
    alpha: Annotated[float, Field(gt=0)] = 1.0


_TIMM_WORDS = {
    "rand": {"m": "magnitude", "n": "layers", "mstd": "noise", "inc": "increasing", "w": "weighted"},
    "augmix": {"m": "magnitude", "w": "width", "d": "depth", "mstd": "noise", "a": "alpha"},
}


def parse_timm(text: str) -> TimmPolicy:
    """`rand-m9-mstd0.5-inc1` in words.

    >>> parse_timm("rand-m9-mstd0.5-inc1").magnitude
    9.0
    """
    kind, *words = text.split("-")
    if kind not in _TIMM_WORDS:
        raise ValueError(
            f'expected "rand-…" (RandAugment) or "augmix-…", such as rand-m9-mstd0.5-inc1, got {text!r}'
        )
    values: dict[str, Any] = {"kind": kind, "magnitude": 10 if kind == "rand" else 3}
    for word in words:
        found = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", word)
        name = _TIMM_WORDS[kind].get(found[1]) if found else None
        if found is None or name is None:
            raise ValueError(
                f"unknown word {word!r} in {text!r}, valid: {', '.join(_TIMM_WORDS[kind])} and a number"
            )
        number = float(found[2])
        if name == "weighted" and number:
            raise ValueError(f"{text!r}: of the sets of weights only w0 exists")
        whole = name in ("layers", "width", "depth")
        values[name] = (
            int(number)
            if whole
            else name == "weighted" or bool(number)
            if name in ("weighted", "increasing")
            else number
        )
    try:
        return TimmPolicy(**values)
    except ValidationError as error:
        raise ValueError(f"{text!r}: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}") from None


OPS: dict[str, type[TransformOp]] = {op.__name__: op for op in TransformOp.__subclasses__()}


def parse_op(entry: Any) -> TransformOp:
    """`{"CropImage": {"size": 224}}` as the object that describes it.

    >>> parse_op({"CropImage": {"size": 224}})
    CropImage(size=224)
    """
    return parse_named(entry, OPS)


def parse_named(entry: Any, known: Mapping[str, type[SectionType]]) -> SectionType:
    """`{name: arguments}` as the section of that name."""
    if isinstance(entry, Section):
        return entry  # type: ignore[return-value]
    if isinstance(entry, str):  # `- ToCHWImage` without a colon
        entry = {entry: None}
    if not isinstance(entry, dict) or len(entry) != 1:
        raise ValueError(f"expected one operation such as `CropImage: {{size: 224}}`, got {entry!r}")
    ((name, arguments),) = entry.items()
    if name not in known:
        raise ValueError(f'unknown operation "{name}", {did_you_mean(str(name), known)}')
    return known[name].model_validate(arguments)


def dump_op(op: Section) -> dict[str, dict[str, Any]]:
    """The config form of an operation, for `config.yaml` and `inference.yml`."""
    return {type(op).__name__: op.model_dump(mode="json", exclude_defaults=False)}


def prepared_size(ops: Sequence[TransformOp]) -> tuple[int, int] | None:
    """Height and width of every image after these operations; None where they depend on the image.

    >>> prepared_size([ResizeImage(resize_short=256), CropImage(size=224)])
    (224, 224)
    """
    sizing = (CropImage, CropImageAtRatio, RandCropImage, RandCropImageV2, RandomCropImage, ResizeImage)
    size = next((op.size for op in reversed(ops) if isinstance(op, sizing)), None)
    if size is None:
        return None
    width, height = (size, size) if isinstance(size, int) else size
    return height, width


Op = Annotated[TransformOp, BeforeValidator(parse_op), PlainSerializer(dump_op)]
