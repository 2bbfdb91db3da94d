"""`lowbit digest`: whether files that lowbit wrote are whole, by the digests inside of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson
from lowbit.digest import TRAILERS, add_digest, has_digest, without_digest
from lowbit.errors import LowbitError

_WHOLE, _NONE = "whole", "no digest"


def digest(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, or folders to look through.", show_default=False)
    ],
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Write new digests for files that you changed on purpose."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print damaged files only.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check that checkpoints and exported models are what lowbit wrote, byte for byte.

    Exit code 1 when a file is damaged or was changed.

    **Examples**

    - `lowbit digest runs/digits`
    - `lowbit digest --accept runs/digits/export/inference.yml` after you have edited it
    """
    damaged, states = 0, {}
    for path in _files(paths, every=not accept):
        if accept:
            _accept(path)
        try:
            found = _check(path)
        except LowbitError as error:
            damaged, found = damaged + 1, f"DAMAGED: {error}"
        states[str(path)] = found
        if not as_json and not (quiet and found in (_WHOLE, _NONE)):
            print(f"{path}: {found}")
    if as_json:
        print(json.dumps(states, indent=2, ensure_ascii=False))
    if damaged:
        raise typer.Exit(1)


def _files(paths: list[Path], *, every: bool) -> Iterator[Path]:
    suffixes = (".lowbit", *TRAILERS)
    for path in paths:
        if path.is_file() and path.suffix in suffixes:
            yield path
        elif path.is_dir() and every:
            found = sorted(file for file in path.rglob("*") if file.suffix in suffixes and file.is_file())
            yield from (file for file in found if file.suffix != ".yml" or file.stem.endswith("inference"))
        elif path.is_dir():
            raise LowbitError(f"{path} is a folder: name the files that you changed")
        else:
            what = f"not one of {', '.join(suffixes)}" if path.exists() else "not there"
            raise LowbitError(f"{path} is {what}: give a file that lowbit wrote, or a folder")


def _check(path: Path) -> str:
    if path.suffix == ".lowbit":
        from lowbit.training import checkpoint

        checkpoint.read_checkpoint(path)
        return _WHOLE if checkpoint.has_digest(path.read_bytes()) else _NONE
    content, trailer = path.read_bytes(), TRAILERS[path.suffix]
    if path.suffix == ".yml":
        from lowbit.deploy.model_files import check_exported

        check_exported(path)
    elif path.suffix in (".pdparams", ".pdopt"):
        from lowbit.models import read_pickle

        read_pickle(path)
    else:
        without_digest(content, trailer, path)
    return _WHOLE if has_digest(content, trailer) else _NONE


def _accept(path: Path) -> None:
    from lowbit.files import write_atomically

    if path.suffix == ".lowbit":
        from lowbit.training.checkpoint import accept_content

        accept_content(path)
        return
    if path.suffix == ".yml":
        from lowbit.deploy.model_files import accept_exported

        sealed = accept_exported(path)
    else:
        trailer, content = TRAILERS[path.suffix], path.read_bytes()
        if not has_digest(content, trailer):
            raise LowbitError(f"{path} has no digest: there is nothing to accept")
        sealed = add_digest(content[: -trailer.length], trailer)
    write_atomically(path, lambda file: file.write_bytes(sealed))
