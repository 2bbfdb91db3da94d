"""`lowbit config check`: which configs can be trained, and what stops the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.options import AsJson, Overrides, Quiet, show
from lowbit.errors import LowbitError
from lowbit.formatting import Section

if TYPE_CHECKING:
    from lowbit.training.config_check import ConfigCheck

app = typer.Typer(help="Configs with PaddleClas's sections.", no_args_is_help=True)


@app.callback()
def _config() -> None:
    """Configs with PaddleClas's sections."""


@app.command("check")
def check(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="NAME|FILE…", help="Configs, or folders of them.", show_default=False),
    ],
    override: Overrides = None,
    build: Annotated[
        bool, typer.Option("--build", help="Also build each config's model, which takes a second or more.")
    ] = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Check configs: which can be trained, and why the others cannot.

    Every key, value and name is checked: models, operations, losses, optimizers. Exit code 1 if one of them
    cannot be trained.

    **Examples**

    - `lowbit config check ResNet50.yaml`
    - `lowbit config check ppcls/configs/ImageNet --build`
    - `lowbit config check *.yaml -o Arch.class_num=10 --json`
    """
    from lowbit.training.config_check import check_config

    found = [check_config(file, override or (), build=build) for file in _files(files)]
    if as_json:
        print(json.dumps([each.to_dict() for each in found], indent=2, ensure_ascii=False))
    else:
        show(_sections(found, build=build, summary_only=quiet))
    if not all(each.ok for each in found):
        raise typer.Exit(1)


def _files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.yaml")) + sorted(path.rglob("*.yml")) if path.is_dir() else [path]
        if not inside:
            raise LowbitError(f"{path}: no .yaml files in this folder")
        files += inside
    return files


def _sections(found: list[ConfigCheck], *, build: bool, summary_only: bool) -> list[Section]:
    good = sum(each.ok for each in found)
    verb = "load and build" if build else "load"
    summary = f"{good} of {len(found)} configs {verb} ({100 * good / len(found):.1f} %)"
    if summary_only:
        return [Section(summary)]
    rows = tuple((each.file, each.model or "", _verdict(each)) for each in found)
    reasons = tuple(line for each in found if each.reason for line in _reason(each))
    table = Section("Configs", ("file", "model", ""), rows, left=3)
    return [table, *([Section("Reasons", lines=reasons)] if reasons else []), Section(summary)]


def _verdict(each: ConfigCheck) -> str:
    if each.ok:
        return "builds" if each.builds else "loads"
    return "does not build" if each.loads else "does not load"


def _reason(each: ConfigCheck) -> list[str]:
    """What is wrong, each mistake on its line, behind the file's name unless it names it itself."""
    lines = (each.reason or "").splitlines()
    return [line if line.startswith(each.file) else f"{each.file}: {line}" for line in lines]
