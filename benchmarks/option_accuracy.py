"""What a recipe, or an option of one, does to accuracy: a training for each of them and each seed.

On the handwritten digits unless another config is given, so that a training takes a minute. Everything but
the recipe is the same in every row.

    python benchmarks/option_accuracy.py
    python benchmarks/option_accuracy.py --only "learned inputs" qt_w8a8g8.yaml --seeds 0
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from gradient_options import LOG, ORIGINAL, STOCHASTIC, TENSOR, Pair, both, with_more

ROOT = Path(__file__).parents[1]
MSE = {"grid": "int4", "granularity": "N", "observer": "mse"}
DYNAMIC = {**MSE, "sign": "auto"}


def recipe(gradients: Pair, signal: dict[str, Any] = DYNAMIC) -> dict[str, Any]:
    """4-bit weights, with these gradients and inputs; the first and the last layer in full."""
    rule = {
        "forward": {"input": signal, "weight": MSE},
        "grad_input": {"grad_output": gradients[0], "weight": {**MSE, "granularity": "C"}},
        "grad_weight": {"grad_output": gradients[1], "input": signal},
    }
    rules = [rule, {"match": {"index": [0, -1]}, "skip": True}]
    return {"rules": rules, "calibration": {"steps": 20 if "scaling" in signal else 0}}


PER_TENSOR = {"grid": "int4", "sign": "auto", "observer": "mse"}
# By name: the recipe, a file of it or none, and further arguments of `lowbit train`
OPTIONS: dict[str, tuple[dict[str, Any] | Path | None, list[str]]] = {
    "fp32": (None, []),
    **{path.name: (path, []) for path in sorted((ROOT / "recipes").glob("q*.yaml"))},
    "gradients int4 per tensor": (recipe(both(TENSOR)), []),
    "gradients int4 per tensor, nearest": (recipe(both(TENSOR, rounding="nearest")), []),
    "gradients int4 per tensor, hindsight": (recipe(both(TENSOR, scaling="hindsight")), []),
    "gradients int4 per tensor, last epoch in full": (recipe(both(TENSOR)), ["--finetune_epochs", "1"]),
    "gradients int4, N and C": (
        recipe(({**STOCHASTIC, "granularity": "N"}, {**STOCHASTIC, "granularity": "C"})),
        [],
    ),
    "gradients log4 per tensor": (recipe(both(LOG)), []),
    "gradients log4 per tensor, hindsight": (recipe(both(LOG, scaling="hindsight")), []),
    "gradients NHW and NC, Hadamard": (recipe(with_more(ORIGINAL, rotation="hadamard(16)")), []),
    "gradients NHW and NC, last epoch in full": (recipe(ORIGINAL), ["--finetune_epochs", "1"]),
    "inputs per tensor": (recipe(ORIGINAL, PER_TENSOR), []),
    "inputs per tensor, moving average": (
        recipe(ORIGINAL, {**PER_TENSOR, "scaling": "moving_average"}),
        [],
    ),
    "inputs per tensor, learned": (recipe(ORIGINAL, {**PER_TENSOR, "scaling": "learned"}), []),
}


def accuracy(name: str, seed: int, config: Path, more: list[str], folder: Path) -> float:
    """Top-1 after the last epoch, in percent."""
    values, arguments = OPTIONS[name]
    command = [sys.executable, "-m", "lowbit", "train", "-c", str(config), "-o", f"Global.seed={seed}"]
    if isinstance(values, dict):
        written = folder / "recipe.yaml"
        written.write_text(yaml.safe_dump(values))
        values = written
    if values is not None:
        command += ["--recipe", str(values)]
    run = folder / "run"
    done = subprocess.run(
        [*command, *arguments, *more, "--output-dir", str(run)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{name}: lowbit train failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return 100 * [line for line in lines if line["kind"] == "eval"][-1]["top1"]


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "digits.yaml")
    parser.add_argument("-o", "--override", action="append", default=[], help="of the config, in every row")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=OPTIONS, default=list(OPTIONS), metavar="ROW")
    parsed = parser.parse_args()
    more = [word for value in parsed.override for word in ("-o", value)]
    print(f"| {parsed.config.name} | mean | " + " | ".join(f"seed {seed}" for seed in parsed.seeds) + " |")
    print("|---" * (2 + len(parsed.seeds)) + "|")
    for name in parsed.only:
        found = []
        for seed in parsed.seeds:
            with tempfile.TemporaryDirectory() as folder:
                found.append(accuracy(name, seed, parsed.config, more, Path(folder)))
        print(
            f"| {name} | {mean(found):.2f} | " + " | ".join(f"{one:.2f}" for one in found) + " |", flush=True
        )


if __name__ == "__main__":
    main()
