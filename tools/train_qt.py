"""Train in low precision, gradients too: `python tools/train_qt.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.train_quantized import train_qt

if __name__ == "__main__":
    run_script(train_qt)
