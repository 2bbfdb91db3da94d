"""The `lowbit` command: its subcommands, and how errors reach the user."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable

import typer

from lowbit.cli import (
    advise,
    analyze,
    bench,
    catalog,
    config,
    digest,
    doctor,
    evaluate,
    export,
    infer,
    plan,
    quantize,
    report,
    serve,
    tipc,
    train,
    verify,
)
from lowbit.demo.command import demo
from lowbit.errors import LowbitError
from lowbit.version import __version__

app = typer.Typer(
    name="lowbit",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Quantize, train and deploy neural networks in few bits on PaddlePaddle.",
    epilog="Start with `lowbit demo`, or `lowbit doctor` to see what this machine can do.",
)
app.command("train")(train.train)
app.command("calibrate")(quantize.calibrate)
app.command("quantize")(quantize.quantize)
app.command("eval")(evaluate.evaluate)
app.command("export")(export.export)
app.command("verify")(verify.verify)
app.command("advise")(advise.advise)
app.command("infer")(infer.infer)
app.command("serve")(serve.serve)
app.command("analyze")(analyze.analyze)
app.command("report")(report.report)
app.command("compare")(report.compare)
app.command("plan")(plan.plan)
app.command("recipes")(catalog.recipes)
app.command("models")(catalog.models)
app.command("bench")(bench.bench)
app.command("digest")(digest.digest)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo)
app.add_typer(catalog.data_app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(tipc.app, name="tipc")


# What Paddle makes of a KeyboardInterrupt in the backward pass of a PyLayer: an OSError with its message.
_BACKWARD_INTERRUPTED = "KeyboardInterrupt: <EMPTY MESSAGE>"


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        print(f"lowbit {__version__}")
        raise typer.Exit


def main() -> None:
    """What the installed command runs."""
    run_command(app)


def script_app(function: Callable[..., None]) -> typer.Typer:
    """A script's one function as a command whose help looks like that of `lowbit` itself."""
    script = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="markdown", add_completion=False)
    script.command()(function)
    return script


def run_script(function: Callable[..., None]) -> None:
    """What the ecosystem's scripts run, such as train.py."""
    run_command(script_app(function))


def run_command(command: Callable[[], None]) -> None:
    """Runs a command: errors that the user can fix are one message without a traceback, exit code 2."""
    warnings.showwarning = _show_warning
    # Importing Paddle warns about a missing ccache, which concerns only those who compile with it.
    warnings.filterwarnings("ignore", message="No ccache found")
    warnings.filterwarnings("ignore", module=r"paddle\..*")
    _show_log()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a path need not be in UTF-8
    os.environ.setdefault("GLOG_minloglevel", "2")  # warnings of Paddle's C++ code
    try:
        command()
    except LowbitError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        if _BACKWARD_INTERRUPTED in str(error):
            raise SystemExit(130) from None
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        message = LowbitError(f"{error.filename}: {error.strerror}; give another path")
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _show_log() -> None:
    """lowbit's own log messages look like its warnings, whatever Paddle and VisualDL make of logging."""
    log = logging.getLogger("lowbit")
    log.handlers, log.propagate = [_LogAsWarning(logging.WARNING)], False


class _LogAsWarning(logging.Handler):
    """Looks up stderr again for each message: while a progress bar is shown, that is where it makes room."""

    def emit(self, record: logging.LogRecord) -> None:
        _show_warning(record.getMessage())


def _show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    """Warnings are one line, without the place in lowbit's code."""
    print(f"warning: {message}", file=sys.stderr)
