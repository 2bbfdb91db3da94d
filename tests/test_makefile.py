"""What `make` does and says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")


@needs_make
def test_setup_says_what_it_does_before_it_does_it(tmp_path):
    command = ["make", "--dry-run", "setup", f"VENV={tmp_path / 'venv'}", f"PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    told, installed = done.stdout.index("pip fetches Paddle"), done.stdout.index("pip install")
    assert told < installed
    assert "--no-deps paddleclas" in done.stdout  # whose own pins do not fit


@needs_make
def test_all_tests_run_in_one_pytest_call():
    done = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    (call,) = [line for line in done.stdout.splitlines() if "-m pytest" in line]
    assert "--ignore" not in call
