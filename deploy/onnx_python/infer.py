"""Classify images with an ONNX model: `python deploy/onnx_python/infer.py --help`."""

from lowbit.cli.app import run_script
from lowbit.compat.scripts.export_infer import onnx_infer

if __name__ == "__main__":
    run_script(onnx_infer)
