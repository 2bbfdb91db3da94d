"""Plans what a config's mode runs: the original's commands, without its defects."""

from __future__ import annotations

from pathlib import Path

from lowbit.errors import LowbitError, did_you_mean
from lowbit.tipc.builder import Builder, Machine
from lowbit.tipc.config import ChainConfig
from lowbit.tipc.inference_steps import add_whole_infer
from lowbit.tipc.lines import Field, shorten
from lowbit.tipc.step import ChainPlan
from lowbit.tipc.training_steps import add_training
from lowbit.tipc.values import MODES
from lowbit.tipc.words import split_words


def make_plan(
    config: ChainConfig, mode: str, *, machine: Machine | None = None, python: str | None = None
) -> ChainPlan:
    """The steps of a mode, in order, as the original would run them.

    It departs from the original in what it got wrong: data, device and image are passed on, a mode without
    epochs is an error, every inference has its own log, and nothing needs a shell.

    >>> plan = make_plan(read_config(path), "lite_train_lite_infer")  # doctest: +SKIP
    >>> plan.steps[0].arguments  # doctest: +SKIP
    ('python3.7', 'train.py', '--pact_quant', ...)
    """
    check_mode(mode)
    output = output_folder(config, mode)
    interpreter = config.python
    if python is not None:
        interpreter = Field("--python", 1, "python", python)
    interpreter.require("an interpreter, as in python:python3")
    build = Builder(machine or Machine(), split_words(interpreter, interpreter.value), output)
    if mode == "whole_infer":
        add_whole_infer(build, config)
    else:
        add_training(build, config, mode)
    return ChainPlan(
        config=config.file.source,
        layout=config.layout,
        model_name=config.model_name.value,
        mode=mode,
        root=find_root(Path(config.file.source)),
        output=output,
        steps=tuple(build.steps),
        notes=tuple(build.notes),
    )


def output_folder(config: ChainConfig, mode: str) -> str:
    """Where a mode's logs, folders and results go, from the repository's root."""
    return f"./test_tipc/output/{_model_name(config.model_name)}/{mode}"


def check_mode(mode: str) -> None:
    """A word that is no mode is an error that names the nearest one."""
    if mode not in MODES:
        raise LowbitError(f'unknown mode "{shorten(mode)}", {did_you_mean(mode, MODES)}')


def find_root(config: Path) -> Path:
    """The repository of a config: the folder above `test_tipc`, or else the current one.

    >>> find_root(Path("/home/me/ocr/test_tipc/configs/det/train_infer_python.txt")).as_posix()
    '/home/me/ocr'
    """
    for folder in config.absolute().parents:
        if folder.name == "test_tipc":
            return folder.parent
    return Path.cwd()


def _model_name(field: Field) -> str:
    name = field.require("a model's name, as in model_name:resnet18")
    if name.startswith("/") or ".." in name.split("/"):
        raise field.error(f'expected a name, which becomes that of a folder, found "{shorten(name)}"')
    return name
