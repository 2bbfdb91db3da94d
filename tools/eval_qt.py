"""Test a quantized checkpoint in all ways: `python tools/eval_qt.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.train_quantized import eval_qt

if __name__ == "__main__":
    run_script(eval_qt)
