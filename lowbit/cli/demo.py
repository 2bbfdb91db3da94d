"""`lowbit demo`: the whole way on embedded data, from training to a served model that is proven the same."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from lowbit.config import load_config
from lowbit.errors import LowbitError

# oneDNN merges and reorders sums; a logit may differ by this fraction of the largest, a class never.
_TOLERANCE = 1e-3


def demo(
    output_dir: Annotated[Path, typer.Option(help="Where everything goes.")] = Path("runs/demo"),
) -> None:
    """Train, export, run in Paddle Inference and compare, on handwritten digits; a minute or two.

    **Example**: `lowbit demo --output-dir runs/demo`; a second run takes up what the first one left there.
    """
    import numpy as np

    from lowbit.cli.evaluate import evaluate_trained
    from lowbit.cli.export import export
    from lowbit.deploy import PaddleEngine, compare_outputs, evaluate_engine
    from lowbit.training.inputs import build_loader, open_section
    from lowbit.training.loop import train
    from lowbit.training.trained_model import open_checkpoint

    with as_file(files("lowbit.cli") / "digits.yaml") as path:
        options = {"--output-dir": ("Global.output_dir", str(output_dir))}
        config = load_config(path, ["Global.checkpoints=auto"], options)
    print("1/3  Train ResNet20 on handwritten digits", flush=True)
    train(config)
    print("2/3  Export it for Paddle Inference", flush=True)
    export(output_dir)
    print("3/3  Run both on the validation images", flush=True)
    trained, engine = open_checkpoint(output_dir), PaddleEngine(output_dir / "export")
    validation = config.DataLoader.Eval
    loader = build_loader(validation, open_section(validation.dataset), training=False)
    before = evaluate_trained(trained, validation, "cpu")
    after = evaluate_engine(engine, loader)
    images = np.concatenate([batch.images for batch in loader.epoch(0)])
    comparison = compare_outputs(trained.model, engine, images)

    table = Table("", "top-1", "top-5", title=f"{len(images)} validation images")
    table.add_row("trained model", f"{before['top1']:.1%}", f"{before['top5']:.1%}")
    table.add_row("exported, in Paddle Inference", f"{after['top1']:.1%}", f"{after['top5']:.1%}")
    Console().print(table)
    print(f"Trained and exported compared: {comparison}")
    print(f"Checkpoints     {output_dir}/checkpoints")
    print(f"Metrics         {output_dir}/metrics.jsonl")
    print(f"Exported model  {output_dir}/export")
    print(f"Go on with      lowbit infer {output_dir}/export {_write_digits(output_dir / 'images')}")
    if not comparison.within(_TOLERANCE) or comparison.top1_agreement < 1:
        raise LowbitError("the exported model does not compute what was trained")


def _write_digits(folder: Path) -> Path:
    """A few validation images as files, for the reader's next command."""
    import cv2

    from lowbit.data import open_digits

    digits = open_digits("val")
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(8):
        path = folder / f"{index}_is_{digits.classes[digits.label(index)]}.png"
        cv2.imwrite(str(path), digits.image(index)[:, :, ::-1])  # OpenCV writes blue first
    return folder
