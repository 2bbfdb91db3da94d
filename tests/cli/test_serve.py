"""`lowbit serve` as a process: it says where it is, answers, and ends on SIGTERM."""

import re
import signal
import subprocess
import sys

import pytest

from tests.support.small_onnx import small_onnx

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn", reason="lowbit[serve] is not installed")


def test_a_server_from_start_to_end(tmp_path):
    small_onnx(tmp_path / "inference.onnx")
    command = [sys.executable, "-m", "lowbit", "serve", str(tmp_path), "--port=0", "--threads=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/v2/models/model", line).group()
            assert httpx.get(f"{url}/ready", timeout=30).json() == {"name": "model", "ready": True}
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


def test_a_folder_without_a_model_is_an_error(tmp_path):
    command = [sys.executable, "-m", "lowbit", "serve", str(tmp_path), "--port=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "lowbit export first" in done.stderr
