"""A run in a dozen figures: what `lowbit compare` and the head of a report show."""

from __future__ import annotations

import statistics

from lowbit.report.run_files import Run
from lowbit.report.words import NOTHING, number, percent, size


def figures(run: Run) -> dict[str, str]:
    """By name, ready to be shown; `–` where the run has none.

    figures(open_run(Path("runs/w4a4")))["best top-1"]
    """
    top1, loss = run.points("eval", "top1"), run.points("eval", "loss")
    trained, speed = run.points("train", "loss"), run.points("train", "images_per_second")
    baseline = run.points("baseline", "top1")
    found = {
        "network": run.model_name,
        "precision": run.precision,
        "epochs": str(len(run.of_kind("train"))),
        "fp32 top-1": percent(baseline[-1][1]) if baseline else NOTHING,
        "best top-1": percent(max(value for _, value in top1)) if top1 else NOTHING,
        "last top-1": percent(top1[-1][1]) if top1 else NOTHING,
        "validation loss": number(loss[-1][1] if loss else None),
        "training loss": number(trained[-1][1] if trained else None),
        "images a second": number(statistics.median(v for _, v in speed) if speed else None, 3),
        "weights, planned": size(run.weight_bytes),
        "weights, fp32": size(run.full_weight_bytes),
    }
    return found | _verified(run)


def _verified(run: Run) -> dict[str, str]:
    if run.verify is None:
        return {"verified": NOTHING}
    found = {"verified": "passed" if run.verify["passed"] else "FAILED"}
    found |= {f"exported, {one['format']}": size(one["exported"]) for one in run.verify["sizes"]}
    for engine in run.verify["engines"]:
        found[f"same class, {engine['engine']}"] = percent(engine["agreement"])
        for latency in engine["latency"]:
            words = f"speed-up, {engine['engine']}, batch {latency['batch_size']}"
            found[words] = f"{latency['ratio']:.2f}x"
    return found
