"""Classify images with an exported model: `python deploy/inference_python/infer.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.export_infer import infer

if __name__ == "__main__":
    run_script(infer)
