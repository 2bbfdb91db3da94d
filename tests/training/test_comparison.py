from __future__ import annotations

from lowbit.training.evaluate import comparison_table, difference

FP32 = {"loss": 1.0, "top1": 0.7205, "top5": 0.9035}
QUANTIZED = {"loss": 1.0312, "top1": 0.7125, "top5": 0.9040}


def test_the_difference_is_quantized_minus_fp32():
    change = difference(FP32, QUANTIZED)
    assert {name: round(value, 4) for name, value in change.items()} == {
        "loss": 0.0312,
        "top1": -0.008,
        "top5": 0.0005,
    }


def test_the_table_has_a_column_for_every_figure():
    lines = comparison_table(FP32, QUANTIZED).splitlines()
    assert [line.split() for line in lines] == [
        ["top-1", "top-5", "loss"],
        ["fp32", "72.05", "%", "90.35", "%", "1.0000"],
        ["quantized", "71.25", "%", "90.40", "%", "1.0312"],
        ["difference", "-0.80", "+0.05", "+0.0312"],
    ]
    assert len({len(line) for line in lines}) == 1
    assert not any(line.startswith(" * ") for line in lines)  # Paddle's tools look for that one
