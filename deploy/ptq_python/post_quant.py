"""Quantize a trained model without training it: `python deploy/ptq_python/post_quant.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.post_quant import post_quant

if __name__ == "__main__":
    run_script(post_quant)
