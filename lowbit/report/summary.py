"""A run in figures: the verdict that opens a report, and what `lowbit compare` shows."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from typing import Any

from lowbit.report.elements import NOTHING, number, percent, ratio, size
from lowbit.report.run_files import Run

_IGNORED = ("Global.output_dir",)  # it always differs
_RECIPE = "Recipe"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a run reached when deployed, in its fastest engine; None where it was not measured."""

    run: str
    precision: str
    verified: bool | None = None
    engine: str | None = None
    top1: float | None = None  # None also where the engine saw a sample: accuracies of other images differ
    sample: int | None = None  # images that the engine saw, if not all of verify.json's
    fp32_top1: float | None = None
    fp32_source: str = ""  # where the accuracy of fp32 is from
    size: int | None = None
    fp32_size: int | None = None
    latency: dict[str, Any] | None = None  # of verify.json, for the smallest batch

    @property
    def distance(self) -> float | None:
        """Top-1 minus that of fp32."""
        return None if self.top1 is None or self.fp32_top1 is None else self.top1 - self.fp32_top1

    @property
    def size_ratio(self) -> float | None:
        """How many times smaller the exported file is than that of fp32."""
        return self.fp32_size / self.size if self.fp32_size and self.size else None

    @property
    def speedup(self) -> float | None:
        """How many times as fast as fp32 in the same engine, measured in turns."""
        return self.latency["ratio"] if self.latency else None

    def sentence(self) -> str:
        """The verdict in words.

        >>> Verdict(run="w4a4", precision="W4A4", verified=True, engine="ONNX Runtime", top1=0.98,
        ...         fp32_top1=0.99, size=100_000, fp32_size=700_000).sentence()
        '98.00 % top-1 in ONNX Runtime, 1.00 points below fp32; 100.0 KB, 7.00x smaller.'
        """
        if self.engine is None:
            return "Not deployed yet."
        parts = [f"{percent(self.top1)} top-1 in {self.engine}"]
        if self.sample is not None:
            parts = [f"top-1 in {self.engine} not measured on all images (verified on {self.sample})"]
        if self.distance is not None:
            where = "below" if self.distance < 0 else "above"
            away = abs(self.distance)
            words = f"{100 * away:.2f} points {where} fp32" if round(away, 4) else "the same as fp32"
            parts[0] += f", {words}"
        if self.size is not None:
            smaller = f", {ratio(self.size_ratio)} smaller" if self.size_ratio else ""
            parts.append(f"{size(self.size)}{smaller}")
        if self.latency:
            words = self.latency["verdict"].removeprefix("quantized is ")
            parts.append(f"{number(self.latency['quantized_ms'], 3)} ms, {words}")
        return "; ".join(parts) + "."


def verdicts(runs: list[Run]) -> list[Verdict]:
    """One for each run; a quantized run without an fp32 model of its own is compared with the fp32 run.

    verdicts(open_runs([Path("runs/fp32"), Path("runs/w4a4")]))[1].sentence()
    """
    return [_verdict(run, runs) for run in runs]


def _verdict(run: Run, runs: list[Run]) -> Verdict:
    if run.verify is None or not run.verify["engines"]:
        return Verdict(run=run.name, precision=run.precision)
    engine = deployed_engine(run.verify)
    sizes = run.verify["sizes"]
    file_format = "ONNX" if engine["engine"] in ("onnxruntime", "openvino", "lowbit") else "Paddle"
    exported = next((one for one in sizes if one["format"] == file_format), sizes[0] if sizes else None)
    fp32_top1, source = _fp32_accuracy(run, runs)
    return Verdict(
        run=run.name,
        precision=run.precision,
        verified=run.verify["passed"],
        engine=engine["name"],
        top1=None if is_sample(engine, run.verify) else engine["top1"],
        sample=engine["images"] if is_sample(engine, run.verify) else None,
        fp32_top1=fp32_top1,
        fp32_source=source,
        size=exported["exported"] if exported else None,
        fp32_size=exported["fp32"] if exported else None,
        latency=_smallest_batch(engine),
    )


def deployed_engine(verify: dict[str, Any]) -> dict[str, Any]:
    """The fastest engine of a verify.json: by its latency, or, where that was not measured, by the time that
    it took for an image of the comparison."""
    timed = [engine for engine in verify["engines"] if engine["latency"]]
    if timed:
        return min(timed, key=lambda engine: min(engine["latency"], key=_batch_size)["quantized_ms"])
    return min(verify["engines"], key=lambda engine: engine["seconds"] / engine["images"])


def is_sample(answers: dict[str, Any], verify: dict[str, Any]) -> bool:
    """Whether one of those in a verify.json saw some of its images only."""
    return bool(answers["images"] < verify["images"])


def _smallest_batch(engine: dict[str, Any]) -> dict[str, Any] | None:
    return min(engine["latency"], key=_batch_size, default=None)


def _batch_size(one: dict[str, Any]) -> int:
    return one["batch_size"]


def _fp32_accuracy(run: Run, runs: list[Run]) -> tuple[float | None, str]:
    if run.precision == "fp32" or run.verify is None:
        return None, ""
    if run.verify["fp32"] is not None:
        return run.verify["fp32"]["top1"], "the fp32 model they started from"
    baseline = run.points("baseline", "top1")
    if baseline and run.verify.get("validation_images") == run.verify["images"]:
        return baseline[-1][1], "the fp32 model they started from, in training"
    for other in runs:
        same = other.model_name == run.model_name and other.precision == "fp32"
        if same and other.verify and other.verify["images"] == run.verify["images"]:
            return other.verify["model"]["top1"], f"the run {other.name}"
    return None, ""


def figures(run: Run) -> dict[str, str]:
    """By name, ready to be shown; `–` where the run has none.

    figures(open_run(Path("runs/w4a4")))["best top-1"]
    """
    top1, loss = run.points("eval", "top1"), run.points("eval", "loss")
    trained, speed = run.points("train", "loss"), run.speeds()
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
        of = f" of {engine['images']} images" if is_sample(engine, run.verify) else ""
        found[f"same class, {engine['engine']}"] = percent(engine["agreement"]) + of
        for latency in engine["latency"]:
            words = f"speed-up, {engine['engine']}, batch {latency['batch_size']}"
            found[words] = ratio(latency["ratio"])
    return found


def config_differences(runs: list[Run]) -> dict[str, list[str]]:
    """The settings that are not the same in all runs, with each run's value in words.

    config_differences(open_runs([Path("runs/a"), Path("runs/b")]))["Global.epochs"]
    """
    flat = [_flat(run.config) for run in runs]
    keys = dict.fromkeys(key for one in flat for key in one if key not in _IGNORED)
    found = {key: [_words(key, one.get(key)) for one in flat] for key in keys}
    return {key: words for key, words in found.items() if len(set(words)) > 1}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"Global": {"epochs": 2}}` as `{"Global.epochs": 2}`; a recipe is one value, and lists are, too."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value and name != _RECIPE:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


def _words(key: str, value: Any) -> str:
    if value is None:
        return NOTHING
    if key == _RECIPE and isinstance(value, dict):
        return f"{len(value.get('rules', ()))} rules: {json.dumps(value, sort_keys=True)}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
