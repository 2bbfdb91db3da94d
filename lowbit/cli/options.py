"""Options, tables and progress that commands share."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.config.load import CONFIGS, RECIPES, bundled_names
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
    typer.Option(help="Images to calibrate on: a folder, an archive or a list file; default: Train's."),
]
CalibrationSteps = Annotated[
    int | None, typer.Option(min=1, help="Number of batches; default: that of the recipe.")
]
CalibrationBatch = Annotated[
    int | None, typer.Option(min=1, help="Images per batch; default: as in the config's Train.")
]
BatchNormBatches = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Training batches to re-estimate batch norm from, for the second row of each test; "
        "default: 50; 0 omits these rows.",
    ),
]
DeviceName = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `gpu:0`; default: a GPU if available, else the CPU.")
]
OnnxEngine = Annotated[
    str | None,
    typer.Option(
        help="Run the exported ONNX file in `onnxruntime`, `openvino` or `lowbit`; default: a folder in "
        "Paddle Inference, a file in ONNX Runtime."
    ),
]
TrustCode = Annotated[
    bool,
    typer.Option("--trust-code", help="Import and run your own model code named by the checkpoint."),
]
# The ecosystem's spelling with an underscore, and the one that goes with the other options.
AmpLevelName = Annotated[
    AmpLevel | None, typer.Option("--amp_level", "--amp-level", help="Mixed precision.", show_default=False)
]
AmpDtypeName = Annotated[
    AmpDtype | None,
    typer.Option("--amp_dtype", "--amp-dtype", help="Its number format; default: fp16.", show_default=False),
]
TeacherName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Distill from this model: weights, a run, or `fp32` for the initial weights.",
    ),
]
# Of every command that prints results.
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
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
