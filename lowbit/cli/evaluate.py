"""`lowbit eval`: accuracy of a checkpoint or of an exported model, on the same images."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import (
    AsJson,
    BatchNormBatches,
    ConfigFile,
    DeviceName,
    OnnxEngine,
    Overrides,
    Quiet,
    TrustCode,
    Weights,
    show,
)


def evaluate(
    model: Annotated[
        Path | None,
        typer.Argument(
            help="A run folder, a checkpoint, the folder of an exported model, or an .onnx file.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
    data_path: Annotated[
        Path | None,
        typer.Option(help="Validation images: a folder or archive whose layout lowbit recognises."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Images at a time; default: as in the config, else 64.")
    ] = None,
    engine: OnnxEngine = None,
    device: DeviceName = None,
    table: Annotated[
        bool,
        typer.Option(
            "--table",
            help="Evaluate as quantized, with quantized weights only, and in full precision.",
        ),
    ] = False,
    bn_batches: BatchNormBatches = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Measure top-1 and top-5 accuracy.

    **Examples**

    - `lowbit eval runs/digits`
    - `lowbit eval runs/w4a4` a quantized run, with the fp32 model that it started from
    - `lowbit eval runs/w4a4 --table` tested as w4a4, w4 and fp, each also with batch norm refreshed
    - `lowbit eval runs/digits/export` evaluates the exported model in Paddle Inference
    - `lowbit eval runs/w8a8/export/inference.onnx` evaluates the file in ONNX Runtime
    - `lowbit eval runs/w8a8/export --engine lowbit` evaluates it in lowbit's own runtime
    - `lowbit eval -c ResNet18.yaml --pretrained ResNet18.pdparams`
    """
    from lowbit.api.evaluation import evaluate as measure
    from lowbit.training.display import accuracy_line

    found = measure(
        model,
        config,
        override or (),
        pretrained=pretrained,
        data_path=data_path,
        batch_size=batch_size,
        engine=engine,
        device=device,
        table=table,
        bn_batches=bn_batches,
        trust_code=trust_code,
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps([asdict(row) for row in found.rows] if table else found.to_dict()))
    elif quiet and not table:
        print(accuracy_line(found.metrics))
    else:
        show(found)
