"""The start of a run: its folder, notes, and the fp32 baseline; also for one that only calibrates."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lowbit.config import dump_config
from lowbit.errors import LowbitError
from lowbit.files import link_atomically
from lowbit.training.checkpoint import FP32, find_fp32
from lowbit.training.checkpoint_manager import Keeper
from lowbit.training.display import PlainDisplay, accuracy_line
from lowbit.training.metrics import MetricsLog
from lowbit.training.run_directory import RunDirectory
from lowbit.training.session import Session


def begin_run(
    session: Session, run: RunDirectory, display: PlainDisplay, *, resumed: Path | None = None
) -> MetricsLog | None:
    """Shows the notes, moves an earlier run aside and records this one; the log is the first rank's.

    `resumed` is the checkpoint that the session goes on from.
    """
    for line in session.notes:
        display.message(line)
    _check_ranks_agree(session)  # and from here on nobody looks for a checkpoint that may be moved
    if not session.ranks.is_first:
        return None
    goes_on_here = resumed is not None and resumed.parent.resolve() == run.checkpoints.resolve()
    if not goes_on_here and (aside := run.move_aside_earlier_run()):
        display.message(f"{run.path} held an earlier run: moved to {aside}")
    if resumed is not None and not goes_on_here and (kept := find_fp32(resumed)):
        link_atomically(kept, run.checkpoint(FP32))
    run.record(dump_config(session.config), session.environment, session.plan())
    # Within an epoch, even after its last batch, its record is still to come.
    done = None if resumed is None else session.progress.step - bool(session.progress.batch)
    return MetricsLog(run.path, resumed_step=done, visualdl=session.config.Global.use_visualdl)


def keep_baseline(
    session: Session, keeper: Keeper, log: MetricsLog | None, display: PlainDisplay
) -> dict[str, float] | None:
    """Keeps the unquantized model of a quantized run, and measures it once if there are images for that."""
    if session.fp32 is None:
        return None
    keeper.keep_fp32()
    if session.eval_loader is None:
        return None
    metrics = session.evaluate(display, session.fp32)
    display.message(accuracy_line(metrics, of="fp32"))
    if log:
        log.write("baseline", 0, **metrics)
    return metrics


def _check_ranks_agree(session: Session) -> None:
    """Ranks without a common disk would resume from different places and wait for each other forever."""
    steps = session.ranks.sum(np.array([session.progress.step]))[0]
    if steps != session.progress.step * session.ranks.world:
        raise LowbitError(
            "the processes have resumed from different checkpoints; let all see the same output folder"
        )
