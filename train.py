"""Train a model: `python train.py --help`."""

import typer

from lowbit.cli.app import run_command
from lowbit.cli.scripts.train import train

if __name__ == "__main__":
    run_command(lambda: typer.run(train))
