"""What commands share: options, tables that fit the terminal, progress."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.config.lookup import CONFIGS, RECIPES, bundled_names
from lowbit.config.schema import AmpDtype, AmpLevel
from lowbit.formatting import Section, as_text

if TYPE_CHECKING:
    from lowbit.api.result import Result


def complete_recipe(incomplete: str) -> list[str]:
    """The bundled recipes for the shell's completion; files are completed where none fits."""
    return [name for name in bundled_names(RECIPES) if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """The bundled configs, likewise."""
    return [name for name in bundled_names(CONFIGS) if name.startswith(incomplete)]


def complete_model(incomplete: str) -> list[str]:
    """The models' names, likewise."""
    from lowbit.models import model_names

    return [name for name in model_names() if name.startswith(incomplete)]


_CONFIG = typer.Option(
    "--config",
    "-c",
    metavar="NAME|FILE",
    help="A config with PaddleClas's sections; `lowbit models` lists names.",
    autocompletion=complete_config,
)
ConfigFile = Annotated[Path | None, _CONFIG]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "-o", metavar="SECTION.KEY=VALUE", help="Changes one setting of the config; repeatable."
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Weights for the config's model, instead of a checkpoint."),
]
RequiredConfig = Annotated[Path, _CONFIG]
RunFolder = Annotated[Path | None, typer.Option(help="The run's folder.")]
# Of the commands that quantize without training.
TrainedWeights = Annotated[
    str | None, typer.Option(metavar="FILE", help="The trained weights (.pdparams or .safetensors).")
]
CalibrationData = Annotated[
    Path | None,
    typer.Option(help="Images to calibrate on: a folder, an archive or a list file; left out: Train's."),
]
CalibrationSteps = Annotated[
    int | None, typer.Option(min=1, help="Batches; left out: as many as the recipe says.")
]
CalibrationBatch = Annotated[
    int | None, typer.Option(min=1, help="Images a batch; left out: as in the config's Train.")
]
BatchNormBatches = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Training batches from which batch norm is refreshed for the second row of each test; "
        "left out: 50, and 0: leave these rows out.",
    ),
]
DeviceName = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `gpu:0`; left out: the best device there is.")
]
OnnxEngine = Annotated[
    str | None,
    typer.Option(
        help="Run the exported ONNX file in `onnxruntime`, `openvino` or `lowbit`; left out: a folder in "
        "Paddle Inference, a file in ONNX Runtime."
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Import the code of a network of your own that the checkpoint names, and run it."
    ),
]
# The ecosystem's spelling with an underscore, and the one that goes with the other options.
AmpLevelName = Annotated[
    AmpLevel | None, typer.Option("--amp_level", "--amp-level", help="Mixed precision.", show_default=False)
]
AmpDtypeName = Annotated[
    AmpDtype | None,
    typer.Option("--amp_dtype", "--amp-dtype", help="Its number format; left out: fp16.", show_default=False),
]
TeacherName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Learn from this model's answers, too: weights, a run, or `fp32`, what is started from.",
    ),
]
# Of every command that prints results.
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only: no progress, no notes.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, whatever the terminal's width.")]


def recipe_option(help_: str, *names: str) -> Any:
    """An option that takes a recipe: the name of a bundled one, or a file."""
    return typer.Option(*names, metavar="NAME|FILE", help=help_, autocompletion=complete_recipe)


def terminal_width() -> int | None:
    """The columns of the terminal; None for a pipe or a file, where rows are best left whole for grep."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def show(result: Result | Sequence[Section], *, wide: bool = False) -> None:
    """Print a result's tables; `wide` shows all columns, each row on one line."""
    width = None if wide else terminal_width()
    if isinstance(result, Sequence):
        print(as_text(result, width, wide=wide))
    else:
        print(result.to_text(width, wide=wide))


def print_summary(run: Path) -> None:
    """Print the summary that a run left in its folder, which is JSON."""
    from lowbit.training.run_directory import SUMMARY_FILE

    print((run / SUMMARY_FILE).read_text("utf-8"), end="")
