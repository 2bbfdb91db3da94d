"""The table of `lowbit eval --table` and `tools/eval_qt.py`: one checkpoint, tested in all ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from lowbit.cli.evaluate import auto_split, evaluation
from lowbit.config.data import DataSplit
from lowbit.errors import LowbitError

if TYPE_CHECKING:
    from paddle import Tensor

    from lowbit.data import Loader
    from lowbit.training.trained_model import TrainedModel

_BN_BATCHES = 50


def show_table(
    trained: TrainedModel,
    split: DataSplit | None,
    data_path: Path | None,
    device: str | None,
    *,
    bn_batches: int | None,
    quiet: bool = False,
    as_json: bool = False,
) -> None:
    """Prints the table, or its rows as JSON, and the accuracy as quantized in the line that tools parse."""
    from lowbit.training.display import accuracy_line
    from lowbit.training.evaluation_table import evaluate_in_all_ways, rows_as_text

    if not trained.quantized:
        raise LowbitError(f"{trained.source} is not quantized: there is one way only to test it")
    wanted = _BN_BATCHES if bn_batches is None else bn_batches
    loader = _training_images(trained, data_path) if wanted else None
    with evaluation(trained, split, device, quiet=quiet or as_json) as measure:
        if loader is not None and not (quiet or as_json):
            there = min(wanted, len(loader))
            fewer = "" if there == wanted else f" (all there are; {wanted} were asked for)"
            print(f"batch norm refreshed on {there} training batches{fewer}")
        rows = evaluate_in_all_ways(
            trained.model, measure, None if loader is None else lambda: _batches(loader, wanted)
        )
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        print(rows_as_text(rows))
        print(accuracy_line(rows[0].metrics))


def _training_images(trained: TrainedModel, data_path: Path | None) -> Loader:
    from lowbit.training.inputs import build_loader, open_section

    split, hint = trained.config.DataLoader.Train, "or leave these rows out with --bn-batches 0"
    if data_path is not None:
        ops = trained.preprocessing if split is None else split.dataset.transform_ops
        size = None if split is None else split.sampler.batch_size
        split = auto_split(data_path, ops, part="train", batch_size=size)
    if split is None:
        raise LowbitError(
            "batch norm is refreshed on training images, and the config has no DataLoader.Train section: "
            f"add it, {hint}"
        )
    try:
        dataset = open_section(split.dataset, len(trained.classes), classes=trained.classes)
    except LowbitError as error:
        raise LowbitError(f"batch norm is refreshed on training images: {error}; mend that, {hint}") from None
    return build_loader(split, dataset, training=True, seed=trained.config.Global.seed)


def _batches(loader: Loader, count: int) -> Iterator[Tensor]:
    import paddle

    return (paddle.to_tensor(batch.images) for batch in islice(loader.epoch(0), count))
