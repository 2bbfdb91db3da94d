"""Makes or checks what a chain needs before it runs: data, images, weights. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from lowbit.data.lite import TAR_NAME, lite_files, write_lite_data
from lowbit.errors import LowbitError
from lowbit.tipc.chain_plan import find_root
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.fields import Field, file_behind, shorten

_DEMO = "val/circle/circle_0.jpg"
_ARCHIVES = (TAR_NAME, f"test_images/{TAR_NAME}")  # lite data of the user's own, relative to the repository


def prepare_chain(config: ChainConfig, mode: str) -> list[str]:
    """What was written and what already existed, as lines; a LowbitError if something is missing.

    >>> prepare_chain(read_config(path), "lite_train_lite_infer")  # doctest: +SKIP
    ['./lite_data: 16 training and 16 validation images, drawn', './images/demo.jpg: an image, drawn']
    """
    root = find_root(Path(config.file.source))
    try:
        return _look(root, config, mode) if config.layout == 51 else _prepare(root, config, mode)
    except OSError as error:  # a path that is too long, or that may not be looked at
        raise LowbitError(
            f"{error.filename}: {error.strerror}; correct the path in {config.file.source}"
        ) from None


def _prepare(root: Path, config: ChainConfig, mode: str) -> list[str]:
    lines = []
    if mode == "whole_infer":
        lines.append(_need(root, config.released.weights, "weights"))
    else:
        lines += _data(root, config.training.extra, lite=mode.startswith("lite"))
        if not config.training.pretrained.is_absent:
            lines.append(_need(root, config.training.pretrained, "weights to start from"))
    if not config.inference.image.is_absent and not config.inference.script.is_absent:
        lines.append(_image(root, config.inference.image))
    return lines


def _data(root: Path, field: Field, *, lite: bool) -> list[str]:
    if field.is_absent:
        return [f"line {field.number} names no data: the training script has to find it"]
    path = root / field.value
    drawn = set(lite_files())
    is_lite = all((path / name).is_file() for name in drawn)
    if lite:
        archive = next((name for name in _ARCHIVES if (root / name).is_file()), None)
        if is_lite or (path.exists() and not _is_empty(path)):
            unused = f"; {archive} is not unpacked over it" if archive else ""
            return [f"{field.value}: there already{unused}"]
        if archive:
            return [f"{field.value}: {_unpack(root / archive, path)} files, unpacked from {archive}"]
        write_lite_data(path, tar=False)
        return [f"{field.value}: 16 training and 16 validation images, drawn"]
    if is_lite or not path.exists() or _is_empty(path):
        found = "only lite data" if is_lite else "nothing"
        raise field.error(
            f"expected the whole data at {shorten(field.value)}, found {found}; put it there, or a link to "
            f"it: ln -s /path/to/data {shorten(field.value)}"
        )
    return [f"{field.value}: there already"]


def _unpack(archive: Path, target: Path) -> int:
    """Unpack the user's lite data into the folder `target`, all of it or nothing; returns how many files.

    The archive's outermost folder, if it has just one, takes the name of `target`.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".lite_data.", dir=target.parent) as temporary:
            source = Path(temporary) / "data"
            count = _unpack_members(archive, source)
            if count == 0:
                raise LowbitError(f"{archive}: holds no files; pack train/ and val/ into it, or remove it")
            entries = list(source.iterdir())
            if len(entries) == 1 and entries[0].is_dir() and entries[0].name not in ("train", "val"):
                source = entries[0]
            if target.is_dir():
                target.rmdir()  # empty
            os.replace(source, target)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise LowbitError(f"{archive}: damaged archive ({error}); pack it again, or remove it") from None
    except OSError as error:
        raise LowbitError(f"cannot unpack {archive} into {target}: {error.strerror or error}") from None
    return count


def _unpack_members(archive: Path, folder: Path) -> int:
    """Write the regular files of an archive below `folder`; links, devices and outside paths are errors."""
    count = 0
    with tarfile.open(archive) as packed:
        for member in packed:
            name = PurePosixPath(member.name)
            if member.isdir():
                continue
            if not member.isfile() or name.is_absolute() or ".." in name.parts:
                raise LowbitError(
                    f'{archive}: "{shorten(member.name)}" is a link, a device or outside of the archive\'s '
                    "folder; pack plain files and folders only"
                )
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            source = packed.extractfile(member)
            assert source is not None  # a regular file, as was checked
            with source, open(path, "wb") as file:
                shutil.copyfileobj(source, file)
            count += 1
    return count


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _image(root: Path, field: Field) -> str:
    path = root / field.value
    if path.exists():
        return f"{field.value}: there already"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lite_files()[_DEMO])
    except OSError as error:
        raise LowbitError(f"cannot write {path}: {error.strerror}") from None
    return f"{field.value}: an image, drawn"


def _need(root: Path, field: Field, what: str, path: str | None = None) -> str:
    value = field.require(what) if path is None else path
    if not (root / value).exists():
        raise field.error(
            f"expected {what} at {shorten(value)}, found nothing; put them there: lowbit downloads nothing"
        )
    return f"{value}: there already"


def _look(root: Path, config: ChainConfig, mode: str) -> list[str]:
    """The 51-line layout leaves the data to the repository's own configs, and its own prepare.sh."""
    image = config.inference.image if mode == "whole_infer" else config.inference.train_image
    lines = ["the data is named in the repository's own configs: its test_tipc/prepare.sh makes it"]
    if mode == "whole_infer" and config.dialect.is_paddleclas:
        lines += _released(root, config)
    if not image.is_absent:
        lines.append(_need(root, image, "images for inference", config.dialect.from_root(image.value)))
    return lines


def _released(root: Path, config: ChainConfig) -> list[str]:
    """What a download of PaddleClas's `pretrained_model_url` leaves: weights, or an exported model."""
    weights = config.released.weights
    path = file_behind(weights.value)
    if path is None:
        return []
    return [_need(root, weights, f"what {shorten(weights.value)} has", path.removesuffix(".tar"))]
