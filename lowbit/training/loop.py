"""The training loop, from the first step to the last, readable from top to bottom."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from lowbit.accel.convolutions import fast_convolutions
from lowbit.accel.norm_ops import fast_norm_ops
from lowbit.accel.optimizer_step import fast_updates
from lowbit.accel.process_settings import without_collecting_what_is_there
from lowbit.config import Config, dump_config
from lowbit.errors import LowbitError
from lowbit.files import link_atomically
from lowbit.machine.cpu import OtherProcesses
from lowbit.nn.qt_autograd import in_full_gradients
from lowbit.training.checkpoint import FP32, find_checkpoint, find_fp32, read_checkpoint
from lowbit.training.checkpoint_manager import CheckpointManager
from lowbit.training.display import PlainDisplay, StepReport, accuracy_line, open_display
from lowbit.training.metrics import HealthLog, Meter, MetricsLog
from lowbit.training.optimizers import learning_rate, warmup_note
from lowbit.training.process import Interruption
from lowbit.training.recipe_schedule import begin_epoch, bits_of_epoch, reestimate_batch_norm
from lowbit.training.run_directory import RunClock, RunDirectory, Summary
from lowbit.training.session import Session, open_session
from lowbit.training.step import TrainingStep


def train(
    config: Config, *, insist_on_device: bool = False, quiet: bool = False, silent: bool = False
) -> Path:
    """Trains as the config says and returns the run's folder.

        train(load_config("digits", ["Global.epochs=2"]))

    With `quiet` nothing is shown but the last lines, with `silent` not even these.
    Resumes where `Global.checkpoints` names a checkpoint, or `auto`: the latest one of this folder, if any.
    """
    session = open_session(config, insist_on_device=insist_on_device)
    steps = len(session.train_loader)
    if line := warmup_note(config.Optimizer.lr, steps_per_epoch=steps, epochs=config.Global.epochs):
        session.notes.append(line)
    run = RunDirectory(Path(config.Global.output_dir), config.Global.checkpoint_dir)
    first = session.ranks.is_first
    with (
        open_display(first_rank=first, quiet=quiet, silent=silent) as display,
        run if first else nullcontext(),
        Interruption() as interruption,
        fast_convolutions(wanted=config.Global.fast_convolutions),
        fast_norm_ops(wanted=config.Global.fast_norm_ops),
        fast_updates(),
    ):
        resumed = _resume(session, run)
        log = begin_run(session, run, display, resumed=resumed)
        display.message(session.describe())
        manager = CheckpointManager(run, session)
        try:
            if resumed is None:
                keep_baseline(session, manager, log, display)
                session.calibrate(display, run.reconstruction)
                if session.average:
                    session.average.reset()  # calibration has changed the weights of quantizers
            session.clock = RunClock(total=config.Global.epochs * steps, done=session.progress.step)
            with without_collecting_what_is_there():
                _train_epochs(session, manager, log, display, interruption)
        finally:
            if log:
                log.close()
        summary = _summary(session, run)
        for line in summary.lines():
            display.result(line)
        if first:
            summary.write()
    return run.path


def _resume(session: Session, run: RunDirectory) -> Path | None:
    wanted = session.config.Global.checkpoints
    if wanted is None:
        return None
    if wanted == "auto":
        found = run.newest_whole(session.notes.append)
        if found is None:
            session.notes.append(f"no checkpoint in {run.checkpoints} yet: starting from the beginning")
            return None
        path, checkpoint = found
    else:
        named = find_checkpoint(Path(wanted))
        if named is None:
            raise LowbitError(
                f"{wanted}: no lowbit checkpoint (.lowbit) of that name to resume from; "
                "weights alone are given with --pretrained"
            )
        path, checkpoint = named, read_checkpoint(named)
    session.restore(checkpoint, path)
    at = session.progress
    session.notes.append(f"resumed from {path}: epoch {at.epoch}, batch {at.batch}, step {at.step}")
    return path


def begin_run(
    session: Session, run: RunDirectory, display: PlainDisplay, *, resumed: Path | None = None
) -> MetricsLog | None:
    """Shows the notes, moves an earlier run aside and records this one; the log is the first rank's.

    `resumed` is the checkpoint that the session continues from.
    """
    for line in session.notes:
        display.message(line)
    _check_ranks_agree(session)  # before an earlier run's checkpoints may be moved
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
    session: Session, manager: CheckpointManager, log: MetricsLog | None, display: PlainDisplay
) -> dict[str, float] | None:
    """Keeps the unquantized model of a quantized run, and measures it once if there are images for that."""
    if session.fp32 is None:
        return None
    manager.keep_fp32()
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


def _train_epochs(
    session: Session,
    manager: CheckpointManager,
    log: MetricsLog | None,
    display: PlainDisplay,
    interruption: Interruption,
) -> None:
    config, progress, ranks = session.config, session.progress, session.ranks
    if config.Global.early_stop and session.eval_loader is None:
        raise LowbitError("early stopping goes by validation accuracy: give DataLoader.Eval, or leave it out")
    if progress.epoch >= config.Global.epochs:
        display.message(
            f"nothing to train: {progress.epoch} of {config.Global.epochs} epochs are done "
            "(raise Global.epochs to continue)"
        )
    while progress.epoch < config.Global.epochs and not _stops_early(session):
        epoch = progress.epoch
        _set_gradients(session, display)
        begin_epoch(session, display)
        health = HealthLog(session)
        trained = train_epoch(session, manager, display, interruption, health)
        _check_end(session, manager)
        display.finish(trained)
        # Also the averages of batch norm's statistics.
        ranks.copy_from_first(session.average.tensors if session.average else [])
        ranks.copy_from_first(session.statistics)  # what is evaluated on all is what the first one saves
        if log:
            log.write("train", progress.step, epoch=epoch, **trained)
            if layers := health.record():
                log.write("health", progress.step, epoch=epoch, layers=layers)
            log.draw_weights(progress.step, session.model)
        for line in health.warnings():
            display.message(line)

        is_last = epoch + 1 == config.Global.epochs
        due = (epoch + 1) % config.Global.eval_interval == 0 or is_last
        metrics = None
        if is_last:
            reestimate_batch_norm(session, manager, log, display)
        if session.eval_loader is not None and due and epoch >= config.Global.start_eval_epoch:
            manager.keep_now()  # whatever becomes of the evaluation, the epoch is not lost
            metrics = session.evaluate(display)
            display.message(accuracy_line(metrics))
            if log:
                log.write("eval", progress.step, epoch=epoch, **metrics)
        progress.epoch, progress.batch, progress.meter = epoch + 1, 0, []
        if session.recipe and bits_of_epoch(session.recipe, epoch):
            metrics = None  # with more bits it is better than what the run is for: not the best
        manager.keep_epoch(epoch, metrics)
        if ranks.any(interruption.asked) and progress.epoch < config.Global.epochs:
            _stop_for_interruption(manager, display)
    if _stops_early(session):
        patience = config.Global.early_stop
        display.message(f"stopped early: top-1 has not risen for {patience} epochs (Global.early_stop)")


def _stops_early(session: Session) -> bool:
    """Whether top-1 has not risen for as many epochs as `Global.early_stop` waits."""
    progress, patience = session.progress, session.config.Global.early_stop
    since = 0 if progress.best_epoch is None else progress.epoch - 1 - progress.best_epoch
    return bool(patience) and progress.batch == 0 and since >= patience


def _summary(session: Session, run: RunDirectory) -> Summary:
    progress = session.progress
    return Summary(
        folder=str(run.path),
        epochs=progress.epoch,
        best_top1=progress.best,
        best_epoch=None if progress.best_epoch is None else progress.best_epoch + 1,
        last_top1=progress.last,
        seconds=session.clock.seconds(),
        stopped_early=progress.epoch < session.config.Global.epochs,
        quantized=session.recipe is not None,
    )


def _check_end(session: Session, manager: CheckpointManager) -> None:
    """Stop where a run would end with weights, finite ones, that have answered NaN for half an epoch.

    With a loss scale above 1 such steps are part of finding it.
    """
    progress, steps = session.progress, len(session.train_loader)
    is_last = progress.epoch + 1 == session.config.Global.epochs
    if is_last and progress.bad_in_a_row > steps // 2 and session.precision.loss_scale == 1:
        raise LowbitError(
            f"the training has diverged: its last {progress.bad_in_a_row} steps had a NaN or Inf. This state "
            f"was not saved; lower the learning rate. {manager.last_good()}"
        )


def _set_gradients(session: Session, display: PlainDisplay) -> None:
    """In the last `finetune_epochs` gradients are in full precision."""
    last = session.config.Global.finetune_epochs
    left = session.config.Global.epochs - session.progress.epoch
    if last and not in_full_gradients(session.model, left <= last):
        raise LowbitError(
            "finetune_epochs is for low-precision training, but no gradients are quantized: leave it out"
        )
    if left == last:
        display.message(f"the last {last} epochs: gradients in full precision")


def train_epoch(
    session: Session,
    manager: CheckpointManager,
    display: PlainDisplay,
    interruption: Interruption,
    health: HealthLog,
) -> dict[str, float]:
    """Trains on the rest of the current epoch and returns its figures."""
    config, progress, ranks, loader = session.config, session.progress, session.ranks, session.train_loader
    every, steps, topk = config.Global.print_batch_step, len(loader), config.train_topk
    take_step = TrainingStep(session)
    session.network.train()
    # A checkpoint within an epoch holds the sums of all ranks; the first one continues with them.
    sums = np.array(progress.meter) if progress.meter and ranks.is_first else None
    meter = Meter(topk, sums, session.loss_parts)
    window, window_start = Meter(topk, parts=session.loss_parts), time.perf_counter()
    reading, count = 0.0, 0
    started, samples_before = window_start, meter.samples
    others = OtherProcesses()

    def rate_of(batch: int) -> float:
        step = progress.epoch * steps + batch
        return learning_rate(config.Optimizer.lr, step, steps_per_epoch=steps, epochs=config.Global.epochs)

    display.begin(f"epoch {progress.epoch + 1}/{config.Global.epochs}", steps, progress.batch)
    asked_for_data = time.perf_counter()
    for batch in loader.epoch(progress.epoch, start=progress.batch):
        reading += time.perf_counter() - asked_for_data
        rate = rate_of(progress.batch)
        with health.watching() as seen:
            result = take_step(batch, rate)
        health.add(seen)
        progress.batch += 1
        progress.step += 1
        count += 1
        if result.finite:
            if session.average:
                session.average.update(progress.step - 1)
            progress.bad_in_a_row = 0
            for each in (meter, window):
                each.add(loss=result.loss, hits=result.hits, samples=result.samples, parts=result.parts)
        else:
            progress.bad_in_a_row += 1
            progress.bad_steps += 1
            display.message(
                f"epoch {progress.epoch}, batch {progress.batch - 1}: NaN or Inf (loss {result.loss}), "
                f"step skipped ({progress.bad_in_a_row} in a row, {progress.bad_steps} in all)"
            )
            manager.stop_if_diverged()  # with such weights every step would be bad
            if progress.bad_in_a_row > config.Global.max_bad_steps:
                raise LowbitError(
                    f"{progress.bad_in_a_row} steps in a row had a NaN or Inf (limit: Global.max_bad_steps="
                    f"{config.Global.max_bad_steps}); lower the learning rate. {manager.last_good()}"
                )

        if progress.batch % every == 0 or progress.batch == steps:
            now = time.perf_counter()
            figures, samples = window.result(ranks), ranks.sum(np.array([window.samples]))[0] / count
            display.report(
                StepReport(
                    epoch=progress.epoch,
                    iteration=progress.batch,
                    metrics=figures,
                    learning_rate=rate,
                    reader_cost=reading / count,
                    batch_cost=(now - window_start) / count,
                    samples=samples,
                    epochs=config.Global.epochs,
                    steps=steps,
                    seconds_left=session.clock.seconds_left(progress.step) if session.clock else None,
                )
            )
            window, window_start = Meter(topk, parts=session.loss_parts), now
            reading, count = 0.0, 0
        display.advance()

        progress.bad_images = list(loader.bad_images)
        stop = ranks.any(interruption.asked) and progress.batch < steps
        if stop or (config.Global.save_steps and progress.step % config.Global.save_steps == 0):
            progress.meter = ranks.sum(meter.sums).tolist()
            manager.keep_now()
        if stop:
            _stop_for_interruption(manager, display)
        asked_for_data = time.perf_counter()

    progress.meter = ranks.sum(meter.sums).tolist()
    seconds = time.perf_counter() - started
    seen = ranks.sum(np.array([meter.samples - samples_before]))[0]
    return meter.result(ranks) | {
        "lr": rate_of(steps - 1),
        "images_per_second": float(seen / seconds),
        # Of several processes each would count the others. NaN becomes null: not known.
        "other_processes": others.fraction() if ranks.world == 1 else math.nan,
        "bad_steps": progress.bad_steps,
        "bad_images": int(ranks.sum(np.array([len(loader.bad_images)]))[0]),
    }


def _stop_for_interruption(manager: CheckpointManager, display: PlainDisplay) -> None:
    display.message(f"interrupted. {manager.last_good()}")
    raise KeyboardInterrupt
