"""`tools/eval_qt.py`: the table of one quantized checkpoint, as w4a4, w4 and fp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lowbit.cli.evaluate import images_of, show_table
from lowbit.cli.opening import open_model
from lowbit.cli.options import BatchNormBatches, ConfigFile, DeviceName, Overrides, TrustCode
from lowbit.config import load_config
from lowbit.errors import LowbitError


def eval_qt(
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A run folder or a checkpoint.", show_default=False)
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    pretrained: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The trained weights; left out: Global.pretrained_model."),
    ] = None,
    data_path: Annotated[
        Path | None, typer.Option(help="A folder or archive of images, instead of the config's.")
    ] = None,
    bn_batches: BatchNormBatches = None,
    device: DeviceName = None,
    trust_code: TrustCode = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Test a quantized model as quantized, by its weights alone, and in full precision.

    The same as `lowbit eval --table`.

    **Examples**

    - `python tools/eval_qt.py runs/w4a4g4`
    - `python tools/eval_qt.py -c digits -o Global.pretrained_model=runs/w4a4g4/latest.pdparams`
    """
    if checkpoint is None and pretrained is None and config is not None:
        named = load_config(config, override or ()).pretrained
        pretrained = Path(named) if named else None
    if checkpoint is None and config is None:
        checkpoint, pretrained = pretrained, None  # training left all that is needed beside the weights
    if checkpoint is None and pretrained is None:
        raise LowbitError("give a checkpoint (or run folder), or -c CONFIG with --pretrained WEIGHTS")
    trained = open_model(checkpoint, config, override, pretrained, trust_code=trust_code)
    images = images_of(trained, data_path)
    show_table(trained, images, data_path, device, bn_batches=bn_batches, as_json=as_json)
