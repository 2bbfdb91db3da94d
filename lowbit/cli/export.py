"""`lowbit export`: a trained model becomes files for inference engines, compared before they are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.options import AsJson, ConfigFile, Overrides, Quiet, TrustCode, Weights, show

ExportFormats = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="FORMAT,…",
        help="`paddle`, `onnx`, and `paddle-int8` (a quantized model in int8, in the folder `int8` "
        "inside). Default: `paddle,onnx` for a quantized model, else `paddle`.",
        show_default=False,
    ),
]
ExportForm = Annotated[
    str | None,
    typer.Option(
        "--form",
        metavar="FORM",
        help="`int8`: integers as trained. `simulated`: floats on the trained grids, a Paddle program, slow. "
        "`fp32`: nothing quantized, in the folder `fp32` inside. Default: "
        "`simulated` for Paddle and `int8` for ONNX; Paddle's int8 is added where it is measured faster.",
        show_default=False,
    ),
]
NoLatency = Annotated[
    bool, typer.Option("--no-latency", help="Do not measure the speed against fp32 in each engine.")
]
ExportTarget = Annotated[
    str | None,
    typer.Option(
        help="Where the ONNX file will run: `avx2`, `vnni`, `arm` or `gpu`. Default: this machine.",
        show_default=False,
    ),
]
WeightBits = Annotated[
    int | None,
    typer.Option(
        min=2,
        max=8,
        help="Round weights to this many bits: 7 for 8-bit models on processors without VNNI.",
        show_default=False,
    ),
]


def export(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="Where to; a run's default is its folder `export`.")
    ] = None,
    format_: ExportFormats = None,
    form: ExportForm = None,
    target: ExportTarget = None,
    weight_bits: WeightBits = None,
    any_size: Annotated[
        bool, typer.Option("--any-size", help="ONNX: take images of any height and width.")
    ] = False,
    no_latency: NoLatency = False,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Weights = None,
    data_path: Annotated[
        Path | None,
        typer.Option(
            help="Training images to compute fixed scales from, for dynamic scales; default: Train's."
        ),
    ] = None,
    trust_code: TrustCode = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Export a trained model to Paddle Inference and to ONNX (for ONNX Runtime, OpenVINO, TensorRT).

    Paddle: inference.json, inference.pdiparams and inference.yml. ONNX: inference.onnx, with the integers
    of a quantized model, and the same inference.yml. A quantized model is measured against fp32 in every
    installed engine, and Paddle's int8 form is added where it is faster. Dynamic scales are replaced
    by fixed ones first, computed from training images.

    **Examples**

    - `lowbit export runs/digits` writes runs/digits/export
    - `lowbit export -c ResNet18.yaml --pretrained ResNet18.pdparams --output inference`
    - `lowbit export runs/w8a8 --format onnx --target avx2 --weight-bits 7`
    - `lowbit export runs/w8a8 --format paddle-int8` writes runs/w8a8/export/int8
    - `lowbit export runs/w8a8 --format onnx --any-size`
    - `lowbit export runs/w8a8 --form fp32` writes runs/w8a8/export/fp32
    """
    from lowbit.api.deploy import export_run

    made = export_run(
        checkpoint,
        output,
        formats=format_,
        form=form,
        target=target,
        weight_bits=weight_bits,
        any_size=any_size,
        latency=not no_latency,
        config=config,
        override=override or (),
        pretrained=pretrained,
        data_path=data_path,
        trust_code=trust_code,
        quiet=quiet or as_json,
    )
    if as_json:
        print(json.dumps(made.to_dict(), indent=2, ensure_ascii=False))
    else:
        show(made)
