"""Whole chains with lowbit's own scripts, each step a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit.tipc import Machine, make_plan, prepare_chain, read_config, run_plan
from tests.support.chains import changed_text
from tests.support.runs import ROOT

LITE = "lite_train_lite_infer"
TINY = "--model=tests.support.tiny_net:TinyNet"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """A repository with lowbit's scripts."""
    for name in ("train.py", "tools", "deploy", "recipes", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def _config(root: Path, export: str = f"tools/export_model.py {TINY}") -> Path:
    size = "--crop-size=32 --resize-size=36 --workers=1"
    file = root / "test_tipc/configs/tiny/train_pact_infer_python.txt"
    file.parent.mkdir(parents=True)
    lines = {
        **{2: "model_name:tiny", 3: f"python:{sys.executable}", 4: "gpu_list:-1", 5: "use-gpu:False"},
        6: "--epochs:5",
        14: f"pact_train:train.py {TINY} {size} --lr=0.01 --pact_quant",
        17: f"eval:train.py --test-only {TINY} {size}",
        22: f"norm_export:{export}",
        28: "--use-gpu:False",
        31: "--img-path:./lite_data/val",
    }
    file.write_text(changed_text("pact", lines), "utf-8")
    return file


def test_training_with_pact_to_inference(root):
    config = read_config(_config(root))
    prepare_chain(config, LITE)
    result = run_plan(make_plan(config, LITE))
    assert result.passed, result
    checks = {(step.kind, check.name): check for step in result.steps for check in step.checks}
    assert all(check.passed for check in checks.values())
    assert checks["export", "quantized"].detail == "2 operators that quantize, 2 tensors in 8 bits"
    assert checks["export", "same answers as trained"].detail.startswith("inference.json: 8 images: largest")
    assert checks["infer", "class and probability"].detail.startswith("16 lines, the first: class ")
    assert ("infer", "the trained model's class") in checks


_WRONG = """
import sys
import paddle
from tests.support.tiny_net import build_tiny

folder = dict(word.split("=") for word in sys.argv[1:])["--save-inference-dir"]
model = build_tiny(seed=7)  # random weights: no key of the quantized checkpoint fitted
model.eval()
spec = paddle.static.InputSpec([None, 3, 32, 32], "float32", "x")
paddle.jit.save(model, f"{folder}/inference", input_spec=[spec])
"""


@pytest.mark.slow
def test_an_exporter_that_takes_random_weights(root):
    """What the original does to a model trained with PACT: nothing fits, fp32, and nobody notices."""
    (root / "wrong.py").write_text(_WRONG, "utf-8")
    config = read_config(_config(root, export="wrong.py"))
    prepare_chain(config, LITE)
    result = run_plan(make_plan(config, LITE))
    assert [step.status.value for step in result.steps] == ["passed", "passed", "failed", "not run"]
    reason = "quantized: nothing in the exported model quantizes: it is the fp32 model"
    assert result.steps[2].reason == reason


SHIPPED = sorted(ROOT.glob("test_tipc/configs/*/*.txt"))


@pytest.mark.slow
@pytest.mark.parametrize("config", SHIPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_shipped_passes_on_the_cpu(root, config):
    """With the scripts of the folder, as a user would: prepare, then run."""
    shutil.copytree(ROOT / "test_tipc", root / "test_tipc", ignore=shutil.ignore_patterns("output"))
    words = [str(config.relative_to(ROOT)), LITE]
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for script, more in (("prepare.sh", []), ("test_train_inference_python.sh", ["--device", "cpu"])):
        command = ["bash", f"test_tipc/{script}", *words, *more]
        done = subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:]
    steps = len(make_plan(read_config(config), LITE, machine=Machine(on_cpu=True)).steps)
    assert f"{steps} passed, in " in done.stdout
