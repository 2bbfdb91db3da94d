"""Runs a script in two processes that know of each other, and gives what each of them saved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

LAUNCH_TWO = ("-m", "paddle.distributed.launch", "--nproc_per_node=2", "--backend=gloo")
_ROOT = Path(__file__).parents[2]


def run_on_two_ranks(script: str, folder: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The arrays of `rank0.npz` and `rank1.npz`, which the script writes into the folder that it gets."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PADDLE_", "PYTEST_"))
    }
    environment["PYTHONPATH"] = str(_ROOT)
    command = [sys.executable, *LAUNCH_TWO, "--log_dir", str(folder / "log"), script, str(folder)]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    logs = "\n".join(path.read_text() for path in sorted((folder / "log").glob("workerlog.*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    first, second = (dict(np.load(folder / f"rank{rank}.npz")) for rank in (0, 1))
    return first, second
