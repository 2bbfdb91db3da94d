"""The files of an exported model: inference.yml, the program, its parameters, and whether they are whole."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from lowbit.config.base import Section
from lowbit.config.transform_ops import Op, TransformOp
from lowbit.config.yaml_file import check_section, read_yaml
from lowbit.digest import TEXT, DamagedFile, add_digest, without_digest
from lowbit.errors import LowbitError

Positive = Annotated[int, Field(ge=1)]
# Other tools write class names that are digits without quotes.
ClassName = Annotated[str, BeforeValidator(lambda name: str(name) if type(name) is int else name)]


class InferenceGlobals(Section):
    model_name: str
    image_shape: tuple[Positive, Positive, Positive] | None = None  # channels, height, width
    sha256: dict[str, str] = {}
    checkpoint: str | None = None  # the SHA-256 of the file that the model was trained into
    onednn: bool = True  # false: it answers differently or far more slowly, as found when exporting
    int8: bool = False  # true: written for oneDNN's int8 kernels, which must add exactly (VNNI)


class PreProcessSection(Section):
    transform_ops: list[Op]


class TopkSection(Section):
    topk: Positive = 5
    label_list: list[ClassName] | None = None


class PostProcessSection(Section):
    Topk: TopkSection = TopkSection()


class InferenceYml(Section):
    """The file as it is. `Hpi` is PaddleX's hint to its own engines: ignored."""

    Global: InferenceGlobals
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
        Global=InferenceGlobals(
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


# Tensors of a `.pdiparams` file, to check that it is complete: Paddle's reader accepts truncated files and
# computes with uninitialized memory.
#
# Each tensor has a version (u32), a level of detail (u64, unused: 0), a version again (u32), the length of
# a description (i32), the description (protobuf: element type, dimensions), and the elements.


# Paddle's numbers of element types, and their sizes in bytes.
_SIZES = {0: 1, 1: 2, 2: 4, 3: 8, 4: 2, 5: 4, 6: 8, 20: 1, 21: 1, 22: 2, 23: 8, 24: 16, 32: 1, 33: 1}
_SMALL_INTEGERS = (20, 21)  # uint8, int8


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's elements are in the file, and what they are."""

    kind: int
    start: int
    size: int

    @property
    def is_8_bit(self) -> bool:
        """The elements are integers of 8 bits."""
        return self.kind in _SMALL_INTEGERS


def is_complete(path: Path) -> bool:
    """Whether every tensor of the file has all its elements and nothing follows the last one."""
    end = 0
    try:
        for tensor in stored_tensors(path):
            end = tensor.start + tensor.size
    except ValueError:
        return False
    return end == os.path.getsize(path) and end > 0


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """The tensors in the order of the file; ValueError where the file is something else."""
    length, position = os.path.getsize(path), 0
    with path.open("rb") as file:
        while position < length:
            file.seek(position)
            try:
                _version, levels, _version_again, described = struct.unpack("<IQIi", file.read(20))
                if levels or described < 0:
                    raise ValueError("not a tensor")
                kind, size = _description(file.read(described))
            except (struct.error, KeyError, IndexError) as error:
                raise ValueError("not a tensor") from error
            yield StoredTensor(kind, position + 20 + described, size)
            position += 20 + described + size


def _description(description: bytes) -> tuple[int, int]:
    """Element type and bytes of a tensor, from the protobuf fields 1 (type) and 2 (dimensions)."""
    kind, dimensions, position = None, [], 0
    while position < len(description):
        field, position = _varint(description, position)
        value, position = _varint(description, position)
        if field == 1 << 3:
            kind = value
        elif field == 2 << 3:
            dimensions.append(value)
        else:
            raise KeyError(field)
    return kind, math.prod(dimensions) * _SIZES[kind]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while data[position] & 0x80:
        value |= (data[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | data[position] << shift, position + 1


# Finding the files of an exported model, and checking their digests.


# Paddle 3's format first; .pdmodel is what Paddle 2 wrote and Paddle 3 still runs.
MODEL_SUFFIXES = (".json", ".pdmodel")
PARAMS_SUFFIX = ".pdiparams"


@dataclass(frozen=True)
class ModelFiles:
    """The program, its parameters, and the description beside them (None where another tool wrote them)."""

    model: Path
    params: Path
    yml: Path | None


def find_model_files(directory: str | Path, file_name: str = "inference") -> ModelFiles:
    """The exported model called `file_name` in a folder; an error says what is missing and what is there."""
    directory = Path(directory)
    if not directory.is_dir():
        what = "is a file, not a folder" if directory.exists() else "does not exist"
        raise LowbitError(f"the model folder {directory} {what}; give the folder that holds {file_name}.json")
    models = [directory / (file_name + suffix) for suffix in MODEL_SUFFIXES]
    model = next((path for path in models if path.is_file()), None)
    if model is None:
        others = sorted(
            p.stem for s in MODEL_SUFFIXES for p in directory.glob(f"*{s}") if _params_of(p).is_file()
        )
        hint = f"; it has other exported models: {', '.join(others)}" if others else "; export a model first"
        if any((directory / "export" / path.name).is_file() for path in models):
            hint = f"; the exported model of this run is in {directory / 'export'}"
        raise LowbitError(f"no {file_name}.json in {directory}{hint}")
    params = _params_of(model)
    if not params.is_file():  # Paddle would run the model with whatever is in memory
        raise LowbitError(
            f"{model} has no {params.name} next to it: the parameters are missing; export it again"
        )
    yml = directory / f"{file_name}.yml"
    return ModelFiles(model, params, yml if yml.is_file() else None)


def _params_of(model: Path) -> Path:
    return model.with_name(model.stem + PARAMS_SUFFIX)


def sha256(path: Path) -> str:
    """The digest of a file, read in blocks: parameters may be larger than memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def check_files(files: ModelFiles, digests: dict[str, str]) -> None:
    """Stop when a file is not what was exported: cut short, damaged, or from another export."""
    for path in (files.model, files.params):
        if path.name in digests and sha256(path) != digests[path.name]:
            raise _not_as_exported(path, files.yml)
    if files.params.name not in digests and not is_complete(files.params):
        raise LowbitError(f"{files.params} is damaged: tensors in it are cut short; export the model again")


def check_exported(yml: Path) -> None:
    """Stop when a file whose digest an inference.yml records is missing or is not what was exported."""
    for name, recorded in read_inference_yml(yml).Global.sha256.items():
        path = yml.with_name(name)
        if not path.is_file() or sha256(path) != recorded:
            raise _not_as_exported(path, yml)


def accept_exported(yml: Path) -> bytes:
    """The content of an inference.yml with the present digests of the files next to it and of itself."""
    values, _ = read_yaml(yml)
    lines = [line for line in yml.read_bytes().splitlines(keepends=True) if not line.startswith(TEXT.before)]
    content = b"".join(lines)
    try:
        recorded = dict(values["Global"].get("sha256") or {})
        for name, old in recorded.items():
            content = content.replace(old.encode(), sha256(yml.with_name(name)).encode())
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise LowbitError(f"{yml}: the files that it describes cannot be read ({error})") from None
    return add_digest(content, TEXT)


def _not_as_exported(path: Path, yml: Path | None) -> DamagedFile:
    return DamagedFile(
        f"{path} is damaged or belongs to another export: its digest is not the one that {yml} recorded; "
        f"export the model again, or, if you replaced it on purpose, accept it with: "
        f"lowbit digest --accept {yml}"
    )
