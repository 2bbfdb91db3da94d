"""`deploy/ptq_python/post_quant.py`: post-training quantization, with the ecosystem's options."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lowbit.cli.options import TrustCode, show
from lowbit.compat.scripts.export_infer import yes_no_option
from lowbit.errors import LowbitError, did_you_mean

# PaddleSlim's words, and lowbit's. Its `hist` is a percentile, chosen by --hist_percent.
_OBSERVERS = {
    "KL": "kl",
    "kl": "kl",
    "mse": "mse",
    "abs_max": "minmax",
    "min_max": "minmax",
    "minmax": "minmax",
}
_RUN = "ptq"  # the calibrated run, below the output folder


def post_quant(
    model_path: Annotated[
        Path, typer.Option("--model_path", help="Trained weights, or the folder that training left them in.")
    ],
    model_filename: Annotated[
        str | None,
        typer.Option("--model_filename", help="Of an exported program: an error, see --model_path."),
    ] = None,
    params_filename: Annotated[
        str | None, typer.Option("--params_filename", help="The weights' file name in --model_path.")
    ] = None,
    output_dir: Annotated[
        Path, typer.Option("--output_dir", help="Where to write inference.json and its like.")
    ] = Path("output"),
    data: Annotated[
        Path, typer.Option("--data", "--data_dir", help="A folder or archive whose layout lowbit recognises.")
    ] = Path("/dataset/ILSVRC2012"),
    use_gpu: Annotated[
        str | None, yes_no_option("--use_gpu", help="Run on a GPU; default: if there is one.")
    ] = None,
    batch_num: Annotated[int, typer.Option("--batch_num", min=1, help="Batches to calibrate on.")] = 10,
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images a batch.")] = 10,
    algo: Annotated[
        str, typer.Option(help="`hist` (with --hist_percent), `KL`, `mse`, `abs_max` or `min_max`.")
    ] = "hist",
    hist_percent: Annotated[
        float, typer.Option("--hist_percent", min=0.5, max=1.0, help="The part of the values that is kept.")
    ] = 0.999,
    model: Annotated[
        str | None,
        typer.Option(
            help="A model's name, or package.module:Class; default: as trained, else mobilenet_v3_small."
        ),
    ] = None,
    img_size: Annotated[
        int, typer.Option(min=1, help="Side of the images, if there is no checkpoint next to the weights.")
    ] = 224,
    trust_code: TrustCode = False,
) -> None:
    """Quantize a trained model to 8 bits without training it, and export it.

    **Example**: `python deploy/ptq_python/post_quant.py --model_path output/latest.pdparams --data lite_data`
    """
    from lowbit.api.deploy import export_run
    from lowbit.config import validate
    from lowbit.training.post_training import calibrate_run, calibration_config, ptq_recipe

    if model_filename is not None:
        raise LowbitError(
            "--model_filename names a program, but lowbit quantizes trained weights and exports the program "
            "itself: leave it out, and give the weights with --model_path"
        )
    observer = _observer(algo, hist_percent)
    weights = _weights(model_path, params_filename)
    values = _values(weights, data, model, img_size, trust_code=trust_code)
    values["Global"] |= {
        "output_dir": str(output_dir / _RUN),
        "pretrained_model": str(weights),
        "device": None if use_gpu is None else "gpu" if use_gpu else "cpu",
        "use_visualdl": False,
    }
    values["Recipe"] = ptq_recipe(observer)
    config = calibration_config(
        validate(values, {}, "post_quant.py"), data_path=data, steps=batch_num, batch_size=batch_size
    )
    run = calibrate_run(config, insist_on_device=use_gpu is not None)
    show(export_run(run, output_dir, trust_code=True))  # what was calibrated was trusted


def _observer(algo: str, hist_percent: float) -> str:
    if algo == "hist":
        return f"percentile({100 * hist_percent:.10g})"
    if algo not in _OBSERVERS:
        raise LowbitError(f'--algo: no algorithm "{algo}"; {did_you_mean(algo, [*_OBSERVERS, "hist"])}')
    return _OBSERVERS[algo]


def _weights(path: Path, name: str | None) -> Path:
    """The weights that were meant: a file, or the one in a folder."""
    from lowbit.training.checkpoint import find_checkpoint

    if name is not None:
        path = path / name
    if path.suffix == ".pdiparams" or (path.is_dir() and _has_program(path) and not find_checkpoint(path)):
        raise LowbitError(
            f"{path} is an exported model: lowbit quantizes trained weights; give the .pdparams that it was "
            "exported from"
        )
    if path.is_dir():
        found = find_checkpoint(path)
        if found is None:
            raise LowbitError(f"no checkpoint in {path}; give the weights' file, or --params_filename")
        return found.with_suffix(".pdparams")
    return path


def _has_program(folder: Path) -> bool:
    return any(folder.glob("*.pdmodel")) or any(folder.glob("*.pdiparams"))


def _values(weights: Path, data: Path, model: str | None, side: int, *, trust_code: bool) -> dict[str, Any]:
    """The config of the run: the checkpoint's next to the weights, else ImageNet's preprocessing."""
    from lowbit.training.checkpoint import find_checkpoint, read_checkpoint
    from lowbit.training.trained_model import config_of

    beside = find_checkpoint(weights)
    if beside is not None:
        checkpoint = read_checkpoint(beside)
        if checkpoint.recipe is not None:
            raise LowbitError(f"{weights} is quantized already: give the weights of an fp32 model")
        named = checkpoint.model_name if model is not None else trust_code  # by --model, in its place
        values = config_of(checkpoint, beside, trust=named).model_dump(mode="json")
        values["Global"] |= {"checkpoint_dir": "checkpoints", "checkpoints": None}
        if values["DataLoader"]["Eval"] is None:
            raise LowbitError(f"{beside} does not say how images are prepared: it has no DataLoader.Eval")
        ops = values["DataLoader"]["Eval"]["dataset"]["transform_ops"]
    else:
        values = {"Global": {"image_shape": [3, side, side]}, "Arch": {"name": "mobilenet_v3_small"}}
        ops = [
            {"ResizeImage": {"resize_short": side * 256 // 224}},
            {"CropImage": {"size": side}},
            {"NormalizeImage": {}},
        ]
    if model is not None:
        values["Arch"]["name"] = model
    values["DataLoader"] = {"Train": _split(data, "train", ops), "Eval": _split(data, "val", ops)}
    return values


def _split(data: Path, split: str, ops: list[Any]) -> dict[str, Any]:
    dataset = {"name": "AutoDataset", "path": str(data), "split": split, "transform_ops": ops}
    return {"dataset": dataset, "sampler": {"batch_size": 32}, "loader": {"num_workers": 2}}


# ----------------------------------------------------------------------------------------------------------
# `deploy/ptq_python/eval.py`: the accuracy of an exported model, quantized or not.


def evaluate(
    model_path: Annotated[Path, typer.Option("--model_path", help="The folder of an exported model.")] = Path(
        "."
    ),
    model_filename: Annotated[
        str | None,
        typer.Option("--model_filename", help="The program's file name in it; default: inference.json."),
    ] = None,
    params_filename: Annotated[
        str | None,
        typer.Option("--params_filename", help="The weights' file name; the program's with .pdiparams."),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data_dir", "--data", help="A folder or archive whose layout lowbit recognises.")
    ] = Path("dataset/ILSVRC2012"),
    batch_size: Annotated[int, typer.Option("--batch_size", min=1, help="Images a batch.")] = 10,
    use_gpu: Annotated[str, yes_no_option("--use_gpu", help="Run on a GPU.")] = "False",
    ir_optim: Annotated[
        str, yes_no_option("--ir_optim", help="Let Paddle Inference merge operators.")
    ] = "False",
    img_size: Annotated[
        int, typer.Option(min=1, help="Side of the images, where the model does not say how they are made.")
    ] = 224,
) -> None:
    """Measure the accuracy of an exported model.

    **Example**: `python deploy/ptq_python/eval.py --model_path output --data_dir lite_data`
    """
    from lowbit.api.runs import images_at
    from lowbit.config.transform_ops import CropImage, NormalizeImage, ResizeImage
    from lowbit.deploy import PaddleEngine, evaluate_engine
    from lowbit.machine import resolve_device
    from lowbit.training.inputs import build_loader, open_section

    engine = PaddleEngine(
        model_path,
        device=resolve_device("gpu" if use_gpu else "cpu").name,
        optimize=bool(ir_optim),
        file_name=_program_name(model_filename, params_filename),
    )
    if engine.note:
        print(engine.note)
    imagenet = [ResizeImage(resize_short=img_size * 256 // 224), CropImage(size=img_size), NormalizeImage()]
    ops = engine.description.ops if engine.description else imagenet
    split = images_at(data_dir, ops, batch_size=batch_size)
    dataset = open_section(split.dataset, classes=engine.description.classes if engine.description else None)
    start = time.perf_counter()
    found = evaluate_engine(engine, build_loader(split, dataset, training=False))
    seconds = (time.perf_counter() - start) / found["samples"]
    print(f"End test: test image {found['samples']}")
    print(f"test_acc1 {found['top1']:.4f}, test_acc5 {found['top5']:.4f}, avg time {seconds:.5f} sec/img")


def _program_name(model: str | None, params: str | None) -> str:
    """The name that program and weights have in common."""
    names = {Path(name).stem for name in (model, params) if name is not None}
    if len(names) > 1:
        raise LowbitError(
            f"--model_filename {model} and --params_filename {params} differ: Paddle 3 has a program and its "
            "weights under one name"
        )
    return names.pop() if names else "inference"
