"""An fp32 checkpoint quantized to be looked at."""

from __future__ import annotations

import pytest
import yaml

from lowbit.analysis.partial_quantization import quantize_as
from lowbit.errors import LowbitError
from lowbit.nn import find_quantizers
from lowbit.training.loop import train
from lowbit.training.trained_model import open_checkpoint
from tests.support.runs import tiny_config


@pytest.mark.parametrize("steps", [0, 2])
def test_every_quantizer_is_ready_afterwards(tmp_path, steps):
    sign = {"sign": "auto", "scaling": "fixed"} if steps else {}
    rule = {"forward": {"input": {"grid": "int8", **sign}, "weight": {"grid": "int8"}}}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({"rules": [rule], "calibration": {"steps": steps}}))
    trained = open_checkpoint(train(tiny_config(tmp_path / "run", epochs=1)))
    quantize_as(trained, file, trained.config.DataLoader.Eval)
    quantizers = find_quantizers(trained.model)
    assert len(quantizers) == 4
    for quantizer in quantizers:
        quantizer.check_ready()
    trained.quantized = True
    with pytest.raises(LowbitError, match="quantized already"):
        quantize_as(trained, file, trained.config.DataLoader.Eval)
