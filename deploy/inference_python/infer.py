"""Classify images with an exported model: `python deploy/inference_python/infer.py --help`."""

import typer

from lowbit.cli.app import run_command
from lowbit.cli.scripts.infer import infer

if __name__ == "__main__":
    run_command(lambda: typer.run(infer))
