"""`inference.yml`: how to prepare an image for an exported model and how to name its answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from lowbit.config.base import Section
from lowbit.config.mistakes import check_section
from lowbit.config.transform_ops import Op, TransformOp
from lowbit.config.yaml_file import read_yaml
from lowbit.digest import TEXT, add_digest, without_digest
from lowbit.errors import LowbitError

Positive = Annotated[int, Field(ge=1)]
# Other tools write class names that are digits without quotes.
ClassName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


class GlobalSection(Section):
    model_name: str
    image_shape: tuple[Positive, Positive, Positive] | None = None  # channels, height, width
    sha256: dict[str, str] = {}
    checkpoint: str | None = None  # the SHA-256 of the file that the model was trained into
    onednn: bool = True  # false: answers differ under oneDNN, as found when the model was exported
    int8: bool = False  # true: written for oneDNN's int8 kernels, which must add exactly (VNNI)


class PreProcessSection(Section):
    transform_ops: list[Op]


class TopkSection(Section):
    topk: Positive = 5
    label_list: list[ClassName] | None = None


class PostProcessSection(Section):
    Topk: TopkSection = TopkSection()


class InferenceYml(Section):
    """The file as it stands. `Hpi` is PaddleX's hint to its own engines: read over, not used."""

    Global: GlobalSection
    PreProcess: PreProcessSection
    PostProcess: PostProcessSection = PostProcessSection()
    Hpi: dict[str, Any] | None = None

    @property
    def ops(self) -> list[TransformOp]:
        return list(self.PreProcess.transform_ops)

    @property
    def classes(self) -> list[str] | None:
        """Class names by index, or None when the file has none."""
        return self.PostProcess.Topk.label_list

    @property
    def topk(self) -> int:
        return self.PostProcess.Topk.topk


def describe_inference(
    *,
    model_name: str,
    image_shape: tuple[int, int, int],
    transform_ops: Sequence[TransformOp],
    classes: Sequence[str],
    sha256: dict[str, str],
    checkpoint: str | None = None,
    onednn: bool = True,
    int8: bool = False,
    topk: int = 5,
) -> InferenceYml:
    """The description that `export_model` writes."""
    return InferenceYml(
        Global=GlobalSection(
            model_name=model_name,
            image_shape=image_shape,
            sha256=sha256,
            checkpoint=checkpoint,
            onednn=onednn,
            int8=int8,
        ),
        PreProcess=PreProcessSection(transform_ops=list(transform_ops)),
        PostProcess=PostProcessSection(Topk=TopkSection(topk=topk, label_list=list(classes) or None)),
    )


def write_inference_yml(path: Path, description: InferenceYml) -> None:
    """Write it in the layout that PaddleX and PaddleClas read; the last line, a comment, is a digest."""
    values = description.model_dump(mode="json", exclude_none=True)
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    if "\x85" in text:  # the one character that PyYAML writes as it is and reads back as a blank
        text = yaml.safe_dump(values, sort_keys=False)
    path.write_bytes(add_digest(text.encode(), TEXT))


def read_inference_yml(path: str | Path) -> InferenceYml:
    """Read and validate; every mistake is named with its line and key. A digest in it must fit."""
    path = Path(path)
    if not path.is_file():
        raise LowbitError(f"no {path}: how images are prepared for this model is not known; export it again")
    try:
        without_digest(path.read_bytes(), TEXT, path)
    except OSError as error:
        raise LowbitError(f"{path}: cannot be read ({error.strerror})") from None
    values, lines = read_yaml(path)
    if not isinstance(values, dict):
        raise LowbitError(f"{path}: expected the sections Global, PreProcess and PostProcess")
    sources = {at: f"{path}:{line}" for at, line in lines.items()}
    return check_section(InferenceYml, values, sources, str(path))
