"""Every family of models all the way: fp32, QAT W8A8 and a W4A4G4 step, ONNX export, verify in two engines.

Each model trains for a few steps on small images with four classes that are easy to tell apart, is exported
to ONNX and compared on 64 images in ONNX Runtime and OpenVINO. Each runs in a process of its own with a time
limit. Results are kept in model_sweep.yaml; models that are in there are left out, unless named by `--only`.

    python benchmarks/model_sweep.py
    python benchmarks/model_sweep.py --only ResNet18_vd,PPLCNetV2_small
    python benchmarks/model_sweep.py --only failed
    python benchmarks/model_sweep.py --table        # write the table in docs/models.md, run nothing
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import signal
import tempfile
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_suffix(".yaml")
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- model_sweep begins -->", "<!-- model_sweep ends -->"

CLASSES, IMAGES = 4, 64
MOST_STEPS, FEWEST_STEPS, LEARNED = (
    60,
    8,
    0.05,
)  # fp32 training ends when the loss of a batch is below LEARNED
QAT_STEPS, LOW_PRECISION_STEPS = 16, 1
UNNORMALIZED_RATE = 1e-4  # the learning rate of models without normalization, whose ReLUs die at a larger one
LIMIT = 0.99  # of the images, on which an engine must answer with the model's class
TOP1 = 0.9  # the model itself must have learned the classes: agreement on noise says nothing
_SETTLE = 6  # batches
_FORMS = ("fp32", "w8a8")
_ENGINES = ("onnxruntime", "openvino")


@dataclass(frozen=True)
class Case:
    """A model with the image size and the keyword arguments that it is tried with."""

    family: str
    name: str
    size: int = 32
    kwargs: dict[str, Any] = field(default_factory=dict)
    rate: float = 1e-3  # the learning rate, of a model with normalization
    batch: int = 16
    channels: int = 3


# Of PaddleClas: one or two small members of each family; compact networks have images of 64 pixels.
_OF_32_PIXELS = {
    "ResNet": ("ppcls:ResNet18",),
    "ResNet_vd": ("ResNet18_vd",),
    "SE_ResNet_vd": ("SE_ResNet18_vd",),
    "ResNeXt": ("ResNeXt50_32x4d",),
    "SE_ResNeXt": ("SE_ResNeXt50_32x4d",),
    "Res2Net": ("Res2Net50_26w_4s",),
    "RegNet": ("RegNetX_200MF",),
    "DenseNet": ("DenseNet121",),
    "DPN": ("DPN68",),
    "HRNet": ("HRNet_W18_C",),
    "DLA": ("DLA34",),
    "Xception": ("Xception41", "Xception41_deeplab"),
    "DarkNet": ("DarkNet53",),
    "CSPNet": ("CSPDarkNet53",),
    "PPHGNet": ("PPHGNet_tiny",),
    "RepVGG": ("RepVGG_A0",),
    "PVT-V2": ("PVT_V2_B0", "PVT_V2_B2_Linear"),
    "Twins": ("pcpvt_small",),
    "CvT": ("CvT_13_224",),
    "ConvNeXt": ("ConvNeXt_tiny",),
    "VAN": ("VAN_B0",),
}
_OF_64_PIXELS = {
    "SqueezeNet": ("SqueezeNet1_1",),
    "MobileNetV1": ("MobileNetV1_x0_25",),
    "MobileNetV2": ("MobileNetV2_x0_25",),
    "MobileNetV3": ("MobileNetV3_small_x0_35",),
    "MobileNetV4": ("MobileNetV4_conv_small", "MobileNetV4_hybrid_medium"),
    "PPLCNet": ("PPLCNet_x0_25",),
    "PPLCNetV2": ("PPLCNetV2_small",),
    "PPHGNetV2": ("PPHGNetV2_B0",),
    "ESNet": ("ESNet_x0_25",),
    "GhostNet": ("GhostNet_x0_5",),
    "ShuffleNetV2": ("ShuffleNetV2_x0_25", "ShuffleNetV2_swish"),
    "ReXNet": ("ReXNet_1_0",),
    "EfficientNet": ("EfficientNetB0",),
    "EfficientNetV2": ("EfficientNetV2_S",),
    "StarNet": ("StarNet_S1",),
    "FasterNet": ("FasterNet_T0",),
    "MobileViT": ("MobileViT_XXS", "MobileViTV2_x0_5"),
    "MobileViTV3": ("MobileViTV3_XXS",),
    "DLA": ("DLA46_c",),
}
# All of paddle.vision; those of lowbit's own names.
_VISION_OF_32_PIXELS = {
    "ResNet": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "Wide ResNet": ("wide_resnet50_2", "wide_resnet101_2"),
    "ResNeXt": tuple(f"resnext{depth}_{groups}x4d" for depth in (50, 101, 152) for groups in (32, 64)),
    "VGG": ("vgg11", "vgg13", "vgg16", "vgg19"),
    "DenseNet": tuple(f"densenet{depth}" for depth in (121, 161, 169, 201, 264)),
}
_VISION_OF_64_PIXELS = {
    "SqueezeNet": ("squeezenet1_0", "squeezenet1_1"),
    "MobileNet": ("mobilenet_v1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    "ShuffleNetV2": tuple(
        f"shufflenet_v2_{width}" for width in ("x0_25", "x0_33", "x0_5", "x1_0", "x1_5", "x2_0", "swish")
    ),
}
CASES = [
    *(Case(family, name, 32) for family, names in _OF_32_PIXELS.items() for name in names),
    *(Case(family, name, 64, rate=4e-3) for family, names in _OF_64_PIXELS.items() for name in names),
    Case("VGG", "VGG11", 224, batch=4),
    Case("AlexNet", "AlexNet", 224),
    Case("GoogLeNet", "GoogLeNet", 224, batch=4),
    Case("Inception", "InceptionV3", 96),
    Case("Inception", "InceptionV4", 96),
    Case("MixNet", "MixNet_S", 224, batch=4, rate=4e-3),
    Case("ViT", "ViT_small_patch16_224", 32, {"img_size": 32}, rate=1e-4),
    Case("DeiT", "DeiT_tiny_patch16_224", 32, {"img_size": 32}),
    Case("DeiT", "DeiT_tiny_distilled_patch16_224", 32, {"img_size": 32}),
    Case("Swin", "SwinTransformer_tiny_patch4_window7_224", 32, rate=2e-4),
    Case("SwinV2", "SwinTransformerV2_tiny_patch4_window8_256", 256, batch=2, rate=2e-4),
    Case("CSWin", "CSWinTransformer_tiny_224", 224, batch=2, rate=2e-4),
    Case("TNT", "TNT_small", 224, batch=2, rate=2e-4),
    Case("LeViT", "LeViT_128S", 224, batch=4),
    Case("Twins", "alt_gvt_small", 224, batch=4, rate=2e-4),
    Case("UniFormer", "UniFormer_small", 32, {"img_size": 32}, rate=2e-4),
    *(Case(family, name, 32) for family, names in _VISION_OF_32_PIXELS.items() for name in names),
    *(Case(family, name, 64, rate=4e-3) for family, names in _VISION_OF_64_PIXELS.items() for name in names),
    Case("AlexNet", "alexnet", 224),
    Case("GoogLeNet", "googlenet", 224, batch=4),
    Case("Inception", "inception_v3", 96),
    Case("LeNet", "paddle.vision.models:LeNet", 28, channels=1),
]


# What is known about failures.
REASONS = {
    "SwinTransformerV2_tiny_patch4_window8_256": "PaddleClas 2.6.0 cannot run its own model: the forward of "
    "its patch embedding returns a variable that it never sets, whatever the arguments are",
    "ShuffleNetV2_x0_25": "On one image the model itself prefers its class by less than rounding moves",
}


# ----------------------------------------------------------------------------------------------------------
# One model, in a process of its own.


def run_case(case: Case) -> dict[str, Any]:
    """Train, export and verify a model; what failed is in the result as a line of text."""
    import paddle

    import lowbit
    from lowbit.errors import LowbitError
    from lowbit.models import assign_weights, build_model

    lowbit.accelerate()
    paddle.seed(0)
    result: dict[str, Any] = {}
    try:
        net = build_model(case.name, CLASSES, **case.kwargs)
        result["parameters"] = int(sum(one.size for one in net.parameters()))
        if not any("Norm" in type(one).__name__ for one in net.sublayers()):
            case = replace(case, rate=UNNORMALIZED_RATE)
        result["fp32"] = _train(net, case, MOST_STEPS, until=LEARNED)
        result["fp32"] |= _verify(net, case, quantized=False)
    except LowbitError as error:
        return result | {"failed": f"fp32: {error}"}
    # Built once more: also where its parameters have fixed names.
    again = build_model(case.name, CLASSES, **case.kwargs)
    assign_weights(again, {name: value.numpy() for name, value in net.state_dict().items()}, source="fp32")
    for word, attempt, model in (("w8a8", _qat, net), ("w4a4g4", _low_precision, again)):
        try:
            result[word] = attempt(model, case)
        except LowbitError as error:
            result["failed"] = f"{word}: {error}"
    return result


def _qat(net: Any, case: Case) -> dict[str, Any]:
    import lowbit

    net = lowbit.quantize(net, "qat_w8a8", data=[_data(case, seed, case.batch)[0] for seed in range(2)])
    found = _train(net, case, QAT_STEPS, rate=case.rate / 10)
    return found | _verify(net, case, quantized=True)


def _low_precision(net: Any, case: Case) -> dict[str, Any]:
    import lowbit

    net = lowbit.quantize(net, "qt_w4a4g4")
    return _train(net, case, LOW_PRECISION_STEPS, rate=case.rate / 10)


def _data(case: Case, seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images with one of four patterns of stripes and colours each, in noise; and their classes."""
    rng = np.random.default_rng(seed)
    labels = (np.arange(count) + seed) % CLASSES
    rows, columns = np.mgrid[: case.size, : case.size] * (8 * np.pi / case.size)
    patterns = np.stack(
        [np.sin(rows), np.sin(columns), np.sin(rows + columns), np.sin(rows) * np.sin(columns)]
    )
    colours = np.array([[1, 0, -1], [-1, 1, 0], [0, -1, 1], [1, -1, 1]])[:, : case.channels]
    clean = patterns[labels][:, None] + colours[labels][:, :, None, None]
    images = clean + 0.3 * rng.standard_normal((count, case.channels, case.size, case.size))
    return images.astype(np.float32), labels.astype(np.int64)


def _train(net: Any, case: Case, steps: int, *, until: float = 0.0, rate: float | None = None) -> dict:
    """At most so many steps, until the losses of three batches are so small; the steps and the last loss."""
    import paddle

    from lowbit.errors import LowbitError
    from lowbit.training.losses import cross_entropy_of_outputs

    optimizer = paddle.optimizer.AdamW(
        rate or case.rate, parameters=net.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0)
    )
    kinds = (paddle.nn.layer.norm._BatchNormBase, paddle.nn.BatchNorm)
    norms = [one for one in net.sublayers() if isinstance(one, kinds)]
    for norm in norms:
        norm._momentum = 0.5  # so few steps would leave statistics as they are at the start
    net.train()
    losses: list[float] = []
    while len(losses) < steps and not (len(losses) >= FEWEST_STEPS and max(losses[-3:]) < until):
        images, labels = map(paddle.to_tensor, _data(case, 1000 + len(losses), case.batch))
        loss = cross_entropy_of_outputs(net(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
        if not np.isfinite(losses[-1]):
            raise LowbitError(f"the loss is {losses[-1]} in step {len(losses)}")
    with paddle.no_grad():  # the statistics of batch norms as they are for these weights
        for seed in range(_SETTLE if steps > 1 else 0):
            for norm in norms:
                norm._momentum = seed / (seed + 1)  # the mean over the batches
            net(paddle.to_tensor(_data(case, 2000 + seed, 2 * case.batch)[0]))
    net.eval()
    return {"steps": len(losses), "loss": round(losses[-1], 4)}


def _verify(net: Any, case: Case, *, quantized: bool) -> dict[str, Any]:
    """The fraction of images on which each engine answers with the model's class; the model's accuracy.

    Of the images with another class, near-ties are counted: those between whose two classes the model itself
    decides by less than rounding moves.
    """
    from lowbit.deploy import OnnxRuntimeEngine, OpenVinoEngine, export_onnx
    from lowbit.deploy.save_program import ModelInputs
    from lowbit.deploy.verify.evidence import count_ties
    from lowbit.errors import LowbitError

    images, labels = _data(case, 1, IMAGES)
    batches = np.split(images, IMAGES // 16)
    own = np.concatenate([_answers(net, batch) for batch in batches])
    found: dict[str, Any] = {"top1": float((own.argmax(1) == labels).mean())}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "inference.onnx"
        shape = (case.channels, case.size, case.size)
        given = ModelInputs(("x",), (images[:3],))  # as lowbit.export compares on the example
        export_onnx(net, file, model_name=case.name, image_shape=shape, inputs=given, quantized=quantized)
        for key, kind in zip(_ENGINES, (OnnxRuntimeEngine, OpenVinoEngine), strict=True):
            try:
                engine = kind(file, threads=1)
            except LowbitError as error:
                found |= {key: 0.0, f"{key}_error": str(error).replace(str(file), file.name)}
                continue
            answers = np.concatenate([engine.run(batch) for batch in batches])
            ties = count_ties(own, answers, labels)
            found[key] = 1 - ties.differing / IMAGES
            if ties.differing:
                found[f"{key}_near_ties"] = ties.near_ties
    return found


def _answers(net: Any, images: np.ndarray) -> np.ndarray:
    import paddle

    with paddle.no_grad():
        return net(paddle.to_tensor(images)).numpy()


# ----------------------------------------------------------------------------------------------------------
# All models, one after the other; results as data, and as a table.


def problems(result: dict[str, Any]) -> str:
    """Why a model does not pass; nothing if it does."""
    if "failed" in result:
        return result["failed"]
    low = [
        f"{form}: it learned too little, top-1 {result[form]['top1']:.0%}"
        for form in _FORMS
        if result[form]["top1"] < TOP1
    ]
    for form in _FORMS:
        found = result[form]
        for engine in _ENGINES:
            if f"{engine}_error" in found:
                low.append(f"{form}: {found[f'{engine}_error']}")
            elif found[engine] < LIMIT:
                ties = found[f"{engine}_near_ties"]
                low.append(f"{form} in {engine}: same class on {found[engine]:.1%} ({ties} near-ties)")
    return "; ".join(low)


def read_results() -> dict[str, dict[str, Any]]:
    """The results so far, by model."""
    return (yaml.safe_load(RESULTS.read_text("utf-8")) or {}) if RESULTS.exists() else {}


def write_results(results: dict[str, dict[str, Any]]) -> None:
    """In the order of the cases."""
    order = {case.name: number for number, case in enumerate(CASES)}
    kept = {name: results[name] for name in sorted(results, key=lambda name: order.get(name, len(order)))}
    head = (
        "# Written by benchmarks/model_sweep.py: fractions of 64 images with the model's class, and losses.\n"
    )
    RESULTS.write_text(head + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=110), "utf-8")


def run_apart(case: Case, seconds: int) -> dict[str, Any]:
    """`run_case` in a process of its own, which is ended after so many seconds of processor time.

    It is forked from this one, which has imported Paddle and PaddleClas: that takes longer than many a model.
    """
    base = {"family": case.family, "size": case.size, "kwargs": case.kwargs}
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_send_result, args=(case, seconds, theirs))
    child.start()
    theirs.close()
    try:
        return base | ours.recv()
    except EOFError:
        child.join()
        if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return base | {"failed": f"not done after {seconds} seconds of processor time"}
        return base | {"failed": f"the process ended with exit code {child.exitcode}"}
    finally:
        child.join()


def _send_result(case: Case, seconds: int, pipe: Any) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    started = time.process_time()
    try:
        pipe.send(run_case(case) | {"seconds": round(time.process_time() - started)})
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {str(error)[:300]}"})
        traceback.print_exc()


def summary(results: dict[str, dict[str, Any]]) -> str:
    """The setting and how many models passed, as a paragraph."""
    if not results:
        return "No model has been run with the current setting: run the script."
    good = sum(not problems(found) for found in results.values())
    engines = [
        found[form][key]
        for found in results.values()
        for form in _FORMS
        for key in _ENGINES
        if key in found.get(form, {})
    ]
    return (
        f"Setting: images of {CLASSES} classes with noise; fp32 training with AdamW until the losses of "
        f"three batches are below {LEARNED}, {FEWEST_STEPS} to {MOST_STEPS} steps, at a learning rate of "
        f"{UNNORMALIZED_RATE} without normalization, else 0.0001 to 0.004; {QAT_STEPS} of QAT at a "
        f"tenth of the learning rate; {IMAGES} other images; one seed; one thread. A model passes if it "
        f"learned the classes (top-1 of {TOP1:.0%} or more), if each engine gives its class on {LIMIT:.0%} "
        "or more of the images, in fp32 and W8A8, and if the W4A4G4 step has a finite loss. "
        f"**{good} of {len(results)} models pass**; {engines.count(1.0)} of {len(engines)} comparisons "
        f"agree on every image.{_not_run(results)}"
    )


def _not_run(results: dict[str, dict[str, Any]]) -> str:
    """A sentence on the models that have no result yet, if there are any."""
    names = [f"`{case.name}`" for case in CASES if case.name not in results]
    return f" Not run yet: {', '.join(names)}." if names else ""


def table(results: dict[str, dict[str, Any]]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| family | model | images | fp32 | W8A8 | W4A4G4 step | note |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():
        cells = [found["family"], f"`{name}`", f"{found['size']}²"]
        cells += [_agreement(found.get(form)) for form in _FORMS]
        cells.append("yes" if found.get("w4a4g4") else "no")
        note = problems(found)
        if note and name in REASONS:
            note += f". {REASONS[name]}"
        lines.append(f"| {' | '.join(cells)} | {note.replace('|', '/')} |")
    return "\n".join(lines)


def _agreement(found: dict[str, Any] | None) -> str:
    if not found or _ENGINES[0] not in found:
        return "no"
    return " / ".join(f"{100 * found[engine]:.1f} %".replace(".0 %", " %") for engine in _ENGINES)


def write_table(results: dict[str, dict[str, Any]]) -> None:
    """Put the table into docs/models.md."""
    page = PAGE.read_text("utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{summary(results)}\n\n{table(results)}\n\n{END}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", help="models by name, with commas; `failed` are those that did not pass")
    parser.add_argument("--time-limit", type=int, default=300, help="seconds of processor time for a model")
    parser.add_argument("--table", action="store_true", help="write the table and run nothing")
    given = parser.parse_args()
    by_name = {case.name: case for case in CASES}
    results = read_results()
    names = [name for name in by_name if name not in results]
    if given.only:
        bad = [name for name, found in results.items() if problems(found)]
        names = [name for word in given.only.split(",") for name in (bad if word == "failed" else [word])]
    if names and not given.table:
        from lowbit.models import ppcls_names

        ppcls_names()  # imports it once, for all
    for name in [] if given.table else names:
        if name not in by_name:
            parser.error(f"no model {name} in the sweep")
        found = run_apart(by_name[name], given.time_limit)
        results = read_results() | {name: found}  # another process may have written meanwhile
        write_results(results)
        print(
            f"{name}: {problems(results[name]) or 'passed'} ({results[name].get('seconds', '-')} s)",
            flush=True,
        )
    write_table(results)
    bad = [name for name, found in results.items() if problems(found)]
    print(f"{len(results) - len(bad)} of {len(results)} models passed; failed: {', '.join(bad) or 'none'}")


if __name__ == "__main__":
    main()
