"""Train a model: `python train.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.train import train

if __name__ == "__main__":
    run_script(train)
