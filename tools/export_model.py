"""Export a trained model for Paddle Inference: `python tools/export_model.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.export_infer import export_model

if __name__ == "__main__":
    run_script(export_model)
