"""Which checkpoints a run keeps: latest, best, and one an epoch, each written once and then linked."""

from __future__ import annotations

from lowbit.training.checkpoint import (
    FP32,
    find_checkpoint,
    link_checkpoint,
    save_checkpoint,
    save_for_ecosystem,
)
from lowbit.training.run_directory import RunDirectory
from lowbit.training.session import Session


class Keeper:
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
        if metrics and (progress.best is None or metrics["top1"] > progress.best):
            progress.best = metrics["top1"]
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
        """A sentence that names the checkpoint to go on from."""
        latest = find_checkpoint(self._run.checkpoints)
        if latest is None:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is {latest} (go on with --resume {latest})."

    def _keep(self, names: list[str]) -> None:
        # `latest` comes last: whoever resumes from it finds the others as they were when it was written.
        if self._session.ranks.is_first:
            first, *rest = (self._run.checkpoint(name) for name in names)
            save_for_ecosystem(first, self._session.model, self._session.optimizer)
            save_checkpoint(first, self._session.snapshot())
            for path in rest:
                link_checkpoint(first, path)
        self._session.ranks.wait()
