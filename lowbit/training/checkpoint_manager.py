"""When checkpoints are written and which are kept; a run never replaces a good one with a broken one."""

from __future__ import annotations

from lowbit.errors import LowbitError
from lowbit.training.checkpoint import (
    FP32,
    Checkpoint,
    find_checkpoint,
    link_checkpoint,
    save_checkpoint,
    save_for_ecosystem,
)
from lowbit.training.run_directory import RunDirectory
from lowbit.training.session import Session


class CheckpointManager:
    """Saves a session's checkpoints; only the first rank writes, the others wait."""

    def __init__(self, run: RunDirectory, session: Session) -> None:
        self._run = run
        self._session = session

    def keep_epoch(self, epoch: int, metrics: dict[str, float] | None) -> None:
        """After an epoch: `model_{epoch}` when it is due, `best` when it is, and always `latest`, last."""
        progress, settings = self._session.progress, self._session.config.Global
        names = []
        if (epoch + 1) % settings.save_interval == 0:
            names.append(f"model_{epoch}")
        if metrics:
            progress.last = metrics["top1"]
        if metrics and (progress.best is None or metrics["top1"] > progress.best):
            progress.best, progress.best_epoch = metrics["top1"], epoch
            names.append("best")
        self._keep([*names, "latest"])

    def keep_now(self) -> None:
        """In the middle of an epoch: `latest`."""
        self._keep(["latest"])

    def keep_fp32(self) -> None:
        """Once, at the start: the unquantized model as `fp32`, to be compared with."""
        if self._session.ranks.is_first:
            save_checkpoint(self._run.checkpoint(FP32), self._session.fp32_snapshot())
        self._session.ranks.wait()

    def keep_calibrated(self, metrics: dict[str, float] | None) -> None:
        """After calibration without training: `best`, where it was evaluated, and `latest`."""
        self._session.progress.best = metrics["top1"] if metrics else None
        self._keep(["best", "latest"] if metrics else ["latest"])

    def last_good(self) -> str:
        """A sentence that names the checkpoint to continue from."""
        latest = find_checkpoint(self._run.checkpoints)
        if latest is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is {latest} (continue with --resume {latest})."

    def stop_if_diverged(self, snapshot: Checkpoint | None = None) -> None:
        """An error on all ranks if a weight, a statistic or the optimizer's state holds NaN or Inf."""
        ranks, step = self._session.ranks, self._session.progress.step
        bad = self._session.not_finite(snapshot) if ranks.is_first else []
        if ranks.any(bool(bad)):
            names = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
            raise LowbitError(
                f"the training has diverged: after step {step} there is NaN or Inf in "
                f"{names or 'the weights'}. This state was not saved; lower the learning rate. "
                f"{self.last_good()}"
            )

    def _keep(self, names: list[str]) -> None:
        first_rank = self._session.ranks.is_first
        snapshot = self._session.snapshot() if first_rank else None
        self.stop_if_diverged(snapshot)
        # `latest` comes last: a run resumed from it finds the others as they were when it was written.
        if first_rank:
            first, *rest = (self._run.checkpoint(name) for name in names)
            with self._session.deployed_weights():
                save_for_ecosystem(first, self._session.model, self._session.optimizer)
            save_checkpoint(first, snapshot)
            for path in rest:
                link_checkpoint(first, path)
        self._session.ranks.wait()
