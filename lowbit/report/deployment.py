"""The sections about the deployed models: the verdict, predictions, engines and sizes."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from typing import Any

from lowbit.report import elements
from lowbit.report.charts import tradeoffs
from lowbit.report.elements import (
    NOTHING,
    Cell,
    bars,
    details,
    heading,
    number,
    paragraph,
    percent,
    points,
    ratio,
    scatter,
    section,
    size,
    table,
)
from lowbit.report.run_files import Run
from lowbit.report.summary import Verdict, deployed_engine, is_sample, verdicts

_MOST_CLASSES = 25  # in a confusion matrix; of more classes the most frequent mistakes are listed
_MOST_MISTAKES = 20
# Title, value, its words, and which value is the best. Milliseconds of different runs, measured at different
# times, have no best.
_Column = tuple[str, Callable[[Verdict], Any], Callable[[Any], str], Callable[..., Any] | None]
_COLUMNS: tuple[_Column, ...] = (
    ("top-1", lambda one: one.top1, percent, max),
    ("vs fp32", lambda one: one.distance, points, max),
    ("size", lambda one: one.size, size, min),
    ("smaller", lambda one: one.size_ratio, ratio, max),
    ("ms", lambda one: one.latency and one.latency["quantized_ms"], lambda value: number(value, 3), None),
    ("faster", lambda one: one.speedup, ratio, max),
)


def verdict(runs: list[Run]) -> str:
    """What each run reached when deployed, and charts of accuracy over size and latency."""
    found = verdicts(runs)
    content = [_verdict_list(runs, found)]
    if any(one.engine for one in found):
        content.append(_verdict_table(found))
        content.append(paragraph(_verdict_note(found), "note"))
        over = tradeoffs(found)
        titles = {
            "size": ("Accuracy and size", "top-1 in percent; exported file", "KB"),
            "latency": ("Accuracy and latency", "top-1 in percent; fastest engine", "% of fp32's latency"),
        }
        charts = [
            scatter(key, title, unit, over[key], x_unit)
            for key, (title, unit, x_unit) in titles.items()
            if over[key]
        ]
        content.append(f'<div class="charts">{"".join(charts)}</div>')
    missing = [run for run in runs if run.verify is None]
    if missing:
        note = "Not deployed yet. Accuracy, size and latency in the engines come from:"
        content.append(paragraph(note, "note"))
        content.append(elements.commands(f"lowbit verify {shlex.quote(str(run.path))}" for run in missing))
    return section("verdict", "Verdict", *content)


def _verdict_list(runs: list[Run], found: list[Verdict]) -> str:
    rows = []
    for index, (run, one) in enumerate(zip(runs, found, strict=True)):
        words = one.sentence()
        if one.engine is None and (top1 := run.points("eval", "top1")):
            words += f" {percent(max(value for _, value in top1))} top-1 in training."
        rows.append((Cell(one.run, run=index), _state(one), words))
    return elements.statements(rows)


def _verdict_table(found: list[Verdict]) -> str:
    columns = []
    for _, value, words, best_of in _COLUMNS:
        values = [value(one) for one in found]
        known = [one for one in values if one is not None]
        best = best_of(known) if best_of and len(set(known)) > 1 else None
        columns.append(
            [Cell(words(one), "best" if one is not None and one == best else "") for one in values]
        )
    rows = [
        [Cell(one.run, run=index), *cells, _state(one), one.engine or NOTHING, one.precision]
        for index, (one, cells) in enumerate(zip(found, zip(*columns, strict=True), strict=True))
    ]
    head = ["run", *(title for title, *_ in _COLUMNS), "verified", "fastest engine", "precision"]
    marked = "; ★ is the best of a column" if len(found) > 1 else ""
    return table(f"Deployed, in the fastest engine of each run{marked}", head, rows)


def _state(one: Verdict) -> Cell:
    if one.verified is None:
        return Cell("not verified")
    return Cell("verified", "good") if one.verified else Cell("FAILED", "bad")


def _verdict_note(found: list[Verdict]) -> str:
    sources: dict[str, list[str]] = {}
    for one in found:
        if one.fp32_source:
            sources.setdefault(one.fp32_source, []).append(one.run)
    against = "; ".join(f"{source} ({', '.join(names)})" for source, names in sources.items())
    compared = f"vs fp32: percentage points against {against}. " if against else ""
    batch = next((one.latency["batch_size"] for one in found if one.latency), None)
    timed = (
        f"Latency for a batch of {batch}: fp32 and quantized were measured in turns, so their ratio also "
        "holds on a busy machine; milliseconds of different runs were measured at different times."
        if batch
        else "Latency was not measured: `lowbit verify` without --no-latency measures it for quantized runs."
    )
    return compared + timed


def predictions(runs: list[Run]) -> str:
    """The deployed models' confusion matrices, and the images on which fp32 and quantized differ."""
    verified = [run for run in runs if run.verify is not None]
    known = [run for run in verified if run.verify and run.verify.get("predictions")]
    content = []
    if matrices := [matrix for run in known if (matrix := _confusion(run))]:
        content.append(f'<div class="charts">{"".join(matrices)}</div>')
    content += [_differing(run) for run in known if run.precision != "fp32"]
    if missing := [run for run in verified if run not in known]:
        content.append(paragraph("The predictions of these runs are not recorded. They come from:", "note"))
        content.append(elements.commands(f"lowbit verify {shlex.quote(str(run.path))}" for run in missing))
    return section("predictions", "Predictions", *content) if content else ""


def _confusion(run: Run) -> str:
    verify = run.verify or {}
    found = verify["predictions"]
    engine = deployed_engine(verify) if verify["engines"] else None
    key, name = (engine["engine"], engine["name"]) if engine else ("model", "the trained model")
    counts, classes = found["confusion"].get(key), found["classes"]
    if counts is None:
        return ""
    flat = [
        (int(label), int(predicted), count)
        for label, row in counts.items()
        for predicted, count in row.items()
    ]
    if len(classes) > _MOST_CLASSES:
        mistakes = sorted((one for one in flat if one[0] != one[1]), key=lambda one: -one[2])
        rows = [
            [_class(classes, label), _class(classes, predicted), str(count)]
            for label, predicted, count in mistakes[:_MOST_MISTAKES]
        ]
        title = f"{run.name}: the most frequent mistakes in {name}"
        return table(title, ["class", "predicted", "images"], rows, left=2) if rows else ""
    images = [max(1, sum(counts.get(str(label), {}).values())) for label in range(len(classes))]
    cells = [[Cell("") for _ in classes] for _ in classes]
    for label, predicted, count in flat:
        if label < len(classes) and predicted < len(classes):
            heat = None if label == predicted else math.sqrt(count / images[label])
            cells[label][predicted] = Cell(str(count), "right" if heat is None else "wrong", heat=heat)
    lines = [[name_of, *row] for name_of, row in zip(classes, cells, strict=True)]
    return table(f"{run.name} in {name}: true classes in rows, predicted in columns", ["", *classes], lines)


def _differing(run: Run) -> str:
    found = (run.verify or {})["predictions"]
    classes, differing = found["classes"], found["differing"]
    title = f"{run.name}: images on which fp32 and quantized differ"
    if differing is None:
        why = (
            "Not known: the run has no fp32 model. It has one if training starts from fp32 weights "
            "(--pretrained)."
        )
        return heading(title) + paragraph(why, "note")
    lost, gained, both = (differing[key] for key in ("lost", "gained", "both_wrong"))
    if not (total := lost + gained + both):
        return heading(title) + paragraph("None: both give the same class to every image.", "note")
    shown = "" if len(differing["images"]) == total else f" ({len(differing['images'])} are shown)"
    right = f"fp32 alone is right on {lost}, quantized alone on {gained}, neither on {both}"
    words = f"{total} images{shown}: {right}."
    pictures = [_differing_image(classes, image) for image in differing["images"]]
    return heading(title) + paragraph(words, "note") + elements.gallery(pictures)


def _differing_image(classes: list[str], image: dict[str, Any]) -> tuple[str, str, list[Cell]]:
    given, label = image["classes"], image["label"]
    own = given.get("model")
    lines = [Cell(f"class {_class(classes, label)}")]
    for name, words in (("fp32", "fp32"), ("model", "quantized")):
        kind = "good" if given.get(name) == label else "bad"
        lines.append(Cell(f"{words} {_class(classes, given.get(name))}", kind))
    others = {name: one for name, one in given.items() if name not in ("fp32", "model") and one != own}
    lines += [Cell(f"{name} {_class(classes, one)}") for name, one in others.items()]
    return image["name"], image["jpeg"], lines


def _class(classes: list[str], index: int | None) -> str:
    if index is None:
        return NOTHING
    return classes[index] if index < len(classes) else str(index)


def verified(runs: list[Run]) -> str:
    """What each engine makes of the exported model."""
    content = []
    for run in runs:
        if run.verify is None:
            continue
        found = run.verify
        content.append(heading(run.name))
        verdict = "passed" if found["passed"] else "failed"
        limit = (
            f"{found['images']} images, at least {percent(found['limit'])} must get the trained model's class"
        )
        content.append(paragraph(f"Verification {verdict}: {limit}.", "good" if found["passed"] else "bad"))
        evidence = found.get("evidence")
        if evidence and evidence["reason"]:
            content.append(paragraph(f"Agreement proves little: {evidence['reason']}.", "bad"))
        lines = [one["verdict"] for one in found["engines"] if "verdict" in one]
        failed = [line for line in lines if line.startswith("FAILED")]
        content += [paragraph(line, "bad") for line in failed]
        if lines:
            content.append(details("The verdict of each engine", "".join(map(paragraph, lines))))
        answers = [("fp32, before quantization", found["fp32"]), ("trained model", found["model"])]
        answers += [("integer reference", found["integer_reference"])]
        answers += [(engine["name"], engine) for engine in found["engines"]]
        answers = [(name, one) for name, one in answers if one is not None]
        if any(is_sample(one, found) for _, one in answers):
            note = (
                "Those with a number of images saw only a sample; their top-1 and top-5 cannot be compared "
                "with those of all images."
            )
            content.append(paragraph(note, "note"))
        rows = [
            [
                *(
                    _with_images(name, one, found),
                    percent(one["top1"]),
                    percent(one["top5"]),
                    percent(one["agreement"]),
                ),
                *(number(one["max_difference"], 3), number(1000 * one["seconds"] / one["images"], 3)),
            ]
            for name, one in answers
        ]
        head = ["", "top-1", "top-5", "same class", "largest difference", "ms per image"]
        content.append(table(f"{run.name}: answers of the engines", head, rows))
        rows = [
            [
                *(engine["name"], str(one["threads"]), str(one["batch_size"]), number(one["fp32_ms"], 3)),
                *(number(one["quantized_ms"], 3), ratio(one["ratio"]), one["verdict"]),
            ]
            for engine in found["engines"]
            for one in engine["latency"]
        ]
        head = ["", "threads", "batch", "fp32 ms", "quantized ms", "ratio", "verdict"]
        if rows:
            content.append(table(f"{run.name}: latency, fp32 and quantized in turns", head, rows))
        wrong = [(one["name"], one["wrong_layers"]) for one in found["engines"] if one.get("wrong_layers")]
        if wrong:
            named = "; ".join(f"{name}: {', '.join(layers)}" for name, layers in wrong)
            content.append(paragraph(f"First wrong layers: {named}", "bad"))
    if not content:
        return ""
    speeds = bars(
        "Speed relative to fp32 in the same engine (lowbit's runtime: in ONNX Runtime); above 1 is faster",
        [
            (
                index,
                f"{run.name}: {engine['name']}, batch {one['batch_size']}",
                one["ratio"],
                ratio(one["ratio"]),
            )
            for index, run in enumerate(runs)
            for engine in (run.verify or {"engines": ()})["engines"]
            for one in engine["latency"]
        ],
        mark=1.0,
    )
    return section("verify", "Engines", speeds, *content)


def _with_images(name: str, answers: dict[str, Any], verify: dict[str, Any]) -> str:
    return f"{name} ({answers['images']} images)" if is_sample(answers, verify) else name


def advice(runs: list[Run]) -> str:
    """What `lowbit advise` recommends for each run, and what it measured."""
    content = []
    for run in runs:
        if run.advice is None:
            continue
        rows = [
            [
                *(one["name"], one["format"], one["bits"]),
                *(number(one["ms"], 3), ratio(one["faster"]), size(one["size"])),
                *(percent(one["top1"]), percent(one["agreement"])),
            ]
            for one in run.advice["options"]
        ]
        head = ["engine", "format", "bits", "ms", "faster", "size", "top-1", "agrees"]
        caption = (
            f"{run.name}: one sample, {run.advice['threads']} threads; faster: than the fastest fp32; top-1 "
            f"and agreement with the trained model on {run.advice['samples']} samples"
        )
        content += [heading(run.name), paragraph(_capitalized(run.advice["recommendation"]))]
        content.append(table(caption, head, rows, left=3))
    return section("advice", "Advice", *content) if content else ""


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def sizes(runs: list[Run]) -> str:
    """Bars of what the weights and the exported files take."""
    found: list[tuple[int, str, int | None]] = []
    for index, run in enumerate(runs):
        if run.weight_bytes is not None:
            found.append((index, f"{run.name}: weights in fp32", run.full_weight_bytes))
            found.append((index, f"{run.name}: weights as planned", run.weight_bytes))
        for one in (run.verify or {}).get("sizes", ()):
            found.append((index, f"{run.name}: {one['format']} file, fp32", one["fp32"]))
            found.append((index, f"{run.name}: {one['format']} file", one["exported"]))
    rows = [(index, name, count, size(count)) for index, name, count in found if count is not None]
    return section("sizes", "Sizes", bars("Sizes of weights and files", rows)) if rows else ""
