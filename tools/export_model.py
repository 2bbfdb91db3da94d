"""Export a trained model for Paddle Inference: `python tools/export_model.py --help`."""

import typer

from lowbit.cli.app import run_command
from lowbit.cli.scripts.export_model import export_model

if __name__ == "__main__":
    run_command(lambda: typer.run(export_model))
