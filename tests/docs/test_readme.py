"""The code that the READMEs open with runs, and is the same in both languages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# What the reader brings along: a network, data and a training loop.
BEFORE = """\
import paddle
from paddle import nn
from paddle.nn import functional as F

paddle.seed(0)
net = nn.Sequential(
    nn.Conv2D(3, 8, 3), nn.BatchNorm2D(8), nn.ReLU(),
    nn.Conv2D(8, 8, 3), nn.BatchNorm2D(8), nn.ReLU(),
    nn.Flatten(), nn.Linear(128, 4),
)
images, labels = paddle.randn([64, 3, 8, 8]), paddle.randint(0, 4, [64])
loader = paddle.io.DataLoader(paddle.io.TensorDataset([images, labels]), batch_size=16)
x = images[:16]


def train(net, loader):
    optimizer = paddle.optimizer.Adam(1e-3, parameters=net.parameters())
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        optimizer.clear_grad()


"""


def _code(page: str) -> str:
    return re.search(r"^```python\n(.*?)^```", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)[1]


def test_both_languages_show_the_same_code():
    english, chinese = (re.sub(r" *#.*", "", _code(page)) for page in ("README.md", "README.zh.md"))
    assert english == chinese and len(english.split("\n")) <= 10


def test_it_runs(tmp_path):
    program = tmp_path / "readme.py"  # a file: Paddle's export reads sources
    program.write_text(BEFORE + _code("README.md"), "utf-8")
    done = subprocess.run(
        [sys.executable, str(program)], cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for words in ("Exported to out", "passed", "Latency", "cost most first"):
        assert words in done.stdout, done.stdout
    assert (tmp_path / "out/inference.onnx").is_file()
