"""Quantization-aware training: `python tools/train_qat.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.train_quantized import train_qat

if __name__ == "__main__":
    run_script(train_qat)
