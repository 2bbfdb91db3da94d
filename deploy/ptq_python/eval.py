"""Measure the accuracy of an exported model: `python deploy/ptq_python/eval.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.post_quant import evaluate

if __name__ == "__main__":
    run_script(evaluate)
