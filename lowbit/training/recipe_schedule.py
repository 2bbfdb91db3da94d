"""What a recipe changes in the course of a run: bits, fixed scales, batch norm's statistics at its end."""

from __future__ import annotations

from lowbit.nn.batch_norm import refresh_batch_norm
from lowbit.nn.calibration import calibrate
from lowbit.nn.scale_schedule import fix_scales, set_bits, unfix_scales
from lowbit.recipe import Recipe
from lowbit.training.checkpoint_manager import CheckpointManager
from lowbit.training.display import PlainDisplay, accuracy_line
from lowbit.training.metrics import MetricsLog
from lowbit.training.session import Session

_BATCHES = 50  # that scales are fixed on, as when a run is exported whose scales are not


def begin_epoch(session: Session, display: PlainDisplay) -> None:
    """Carry out what the recipe says of an epoch that begins; a resumed one has it in its state already."""
    recipe, progress = session.recipe, session.progress
    if recipe is None or progress.batch:
        return
    bits = bits_of_epoch(recipe, progress.epoch)
    # Before the first epoch calibration has used the bits of the rules.
    if bits != (bits_of_epoch(recipe, progress.epoch - 1) if progress.epoch else None):
        set_bits(session.model, bits or 0)
        calibrate(session.model, session.first_batches(recipe.calibration.steps))
        if session.average:
            session.average.reset()
        display.message(
            f"{bits} bits, as `progressive` says" if bits else "from now on the bits of the rules"
        )
    epochs = session.config.Global.epochs
    if recipe.fix_scales >= epochs and not progress.epoch:
        display.message(
            f"fix_scales: {recipe.fix_scales} has no effect in a run of {epochs} epochs, of which the first "
            "has dynamic scales"
        )
    if recipe.fix_scales and epochs - progress.epoch > recipe.fix_scales and unfix_scales(session.model):
        display.message("the scales of inputs are dynamic again, since the run was extended")
    if recipe.fix_scales and progress.epoch and epochs - progress.epoch == recipe.fix_scales:
        count = fix_scales(session.model, session.first_batches(_BATCHES))
        session.ranks.copy_from_first(session.statistics)
        display.message(f"the scales of {count} inputs are fixed for the last epochs, as they are deployed")


def bits_of_epoch(recipe: Recipe, epoch: int) -> int | None:
    """The bits of a stage of `progressive` in this epoch, counted from 0; None: those of the rules.

    >>> rules = [{"forward": {"weight": {"grid": "int2"}}}]
    >>> stages = [{"bits": 8, "epochs": 1}, {"bits": 4, "epochs": 2}]
    >>> recipe = Recipe(rules=rules, progressive=stages, calibration={"steps": 1})
    >>> [bits_of_epoch(recipe, epoch) for epoch in range(5)]
    [8, 4, 4, None, None]
    """
    end = 0
    for stage in recipe.progressive:
        end += stage.epochs
        if epoch < end:
            return stage.bits
    return None


def reestimate_batch_norm(
    session: Session, manager: CheckpointManager, log: MetricsLog | None, display: PlainDisplay
) -> None:
    """Give batch norms the statistics of the weights that are deployed, on `reestimate_bn` batches.

    Running statistics lag behind weights that change their integers, and average over several of them.
    The accuracy before is shown and recorded; that after it is the evaluation of the epoch.
    """
    wanted = session.recipe.reestimate_bn if session.recipe else 0
    if not wanted:
        return
    manager.keep_now()
    before = None if session.eval_loader is None else session.evaluate(display)
    with session.deployed_weights():
        count = refresh_batch_norm(session.model, session.first_batches(wanted))
        session.ranks.copy_from_first(session.statistics)
        if session.average:
            session.average.absorb()
    display.message(f"batch norm's statistics re-estimated on {count} training batches")
    if before is not None:
        display.message(accuracy_line(before, of="before"))
        if log:
            log.write("before_reestimate_bn", session.progress.step, epoch=session.progress.epoch, **before)
