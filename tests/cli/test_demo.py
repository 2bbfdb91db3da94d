from __future__ import annotations

import pytest

from lowbit.cli import demo as module
from lowbit.config import load_config

# The demo itself takes a minute; TinyNet shows that its parts fit together.
TINY = ["Arch.name=tests.tiny_net:TinyNet", "Global.epochs=1", "Global.use_visualdl=false"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(
        module,
        "load_config",
        lambda path, overrides, options: load_config(path, [*overrides, *TINY], options),
    )


def test_the_whole_way_and_once_more(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run("lowbit", "demo", "--output-dir", "2024: demo")  # YAML would read something else in it
    assert result.code == 0, result
    assert "360 validation images" in result.out
    assert "1/3" in result.out
    assert "[Epoch 0" in result.out
    for file in ("checkpoints/latest.pdparams", "metrics.jsonl", "export/inference.json"):
        assert (tmp_path / "2024: demo" / file).is_file()
    assert "Go on with      lowbit infer" in result.out

    again = run("lowbit", "demo", "--output-dir", "2024: demo")
    assert again.code == 0, again
    assert "nothing to train" in again.out
    assert "[Epoch 0" not in again.out
    assert not (tmp_path / "2024: demo" / "earlier").exists()
