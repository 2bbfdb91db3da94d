"""A model's accuracy beside that of the one it comes from: the quantized beside fp32, for one."""

from __future__ import annotations


def difference(fp32: dict[str, float], quantized: dict[str, float]) -> dict[str, float]:
    """Quantized minus fp32, for every figure.

    >>> difference({"top1": 0.75}, {"top1": 0.5})
    {'top1': -0.25}
    """
    return {name: quantized[name] - value for name, value in fp32.items()}


def comparison_table(
    fp32: dict[str, float],
    quantized: dict[str, float],
    *,
    titles: tuple[str, str] = ("fp32", "quantized"),
) -> str:
    """Three rows: accuracies in percent, their difference in points.

    >>> print(comparison_table({"loss": 1.0, "top1": 0.75}, {"loss": 1.25, "top1": 0.5}))
                  top-1     loss
    fp32        75.00 %   1.0000
    quantized   50.00 %   1.2500
    difference   -25.00  +0.2500
    """
    names = [*(name for name in fp32 if name.startswith("top")), "loss"]
    change = difference(fp32, quantized)
    rows = ((titles[0], fp32, ""), (titles[1], quantized, ""), ("difference", change, "+"))
    lines = [" " * 10 + "".join(f"{name.replace('top', 'top-'):>9}" for name in names)]
    for title, figures, sign in rows:
        cells = [_cell(name, figures[name], sign) for name in names]
        lines.append(f"{title:<10}" + "".join(f"{cell:>9}" for cell in cells))
    return "\n".join(lines)


def _cell(name: str, value: float, sign: str) -> str:
    if name == "loss":
        return f"{value:{sign}.4f}"
    return f"{100 * value:{sign}.2f}" + ("" if sign else " %")
