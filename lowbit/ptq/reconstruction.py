"""Reconstruction: block after block, a calibrated network learns to give the outputs of its fp32 original."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import Tensor, nn

from lowbit.accel.convolutions import fast_convolutions
from lowbit.errors import LowbitError
from lowbit.nn.bn_folding import find_foldable
from lowbit.nn.eval_mode import eval_mode
from lowbit.ptq.block_data import ActivationStore, BlockData, find_window
from lowbit.ptq.block_training import train_block
from lowbit.ptq.blocks import Block, find_blocks
from lowbit.ptq.compensation import compensate_block
from lowbit.ptq.distillation import answer_error, distill
from lowbit.ptq.learned_rounding import unquantized
from lowbit.ptq.saved_progress import SavedProgress, block_state, run_identity
from lowbit.recipe.recipe import Reconstruction

MEMORY = 2 << 30  # bytes of activations that are held; more are kept in temporary files
_MEASURED = 64  # images on which a block's error is measured, and which it does not learn from
_EXAMPLE = 2  # images to find the blocks with

Inputs = Tensor | Sequence[Tensor]


class ReconstructionProgress(Protocol):
    """Who shows how far it is."""

    def begin(self, title: str, total: int, done: int = 0) -> None: ...

    def advance(self) -> None: ...


@dataclass(frozen=True)
class BlockResult:
    """A block's squared error relative to its outputs: rounded to nearest, and in the end.

    With `full_inputs`, of weights alone.
    """

    name: str
    nearest: float
    learned: float


@dataclass(frozen=True)
class Reconstructed:
    """What `reconstruct` did: the blocks in their order, and layers that are in none, with why.

    `distilled` is the difference of answers to fp32 before and after distillation, on images left out.
    """

    blocks: tuple[BlockResult, ...] = ()
    left_alone: dict[str, str] = field(default_factory=dict)
    distilled: tuple[float, float] | None = None

    def __str__(self) -> str:
        lines = [f"Reconstructed {len(self.blocks)} blocks"]
        if self.blocks:
            worst = max(self.blocks, key=lambda block: block.learned)
            lines[0] += (
                f"; the largest squared error of outputs is {worst.learned:.2%} ({worst.name}; with weights "
                f"rounded to nearest {worst.nearest:.2%})"
            )
        if self.distilled is not None:
            before, after = self.distilled
            helped = "" if after < before else ", which did not help"
            lines.append(f"Distilled: answers differ from fp32 by {after:.3g} (before: {before:.3g}){helped}")
        lines += [f"  {name} is rounded to nearest: {why}" for name, why in self.left_alone.items()]
        return "\n".join(lines)


def reconstruct(
    model: nn.Layer,
    batches: Iterable[Inputs],
    settings: Reconstruction,
    *,
    seed: int = 0,
    folder: Path | None = None,
    progress: ReconstructionProgress | None = None,
    memory: int = MEMORY,
) -> Reconstructed:
    """Learn the rounding of a calibrated network's weights, in place, and the steps of its inputs.

    Blocks are trained in the order in which they run: inputs come from the quantized network before the
    block (with `full_inputs`, from one whose weights alone are quantized), targets from the fp32 network.
    What is learned must be better on images that were left out, else the block stays as it was compensated.
    In `folder` every block that is done is saved: a call with the same network, images, settings and seed
    goes on behind it and ends with the same bits. Images and activations take up to `memory` bytes, further
    ones are on disk.

    calibrate(model, batches)
    reconstruct(model, batches, recipe.reconstruction)
    """
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise LowbitError("reconstruction runs in one process: start it without paddle.distributed.launch")
    store = ActivationStore(memory)
    with fast_convolutions():
        return _reconstruct(model, _kept(batches, store), store, settings, seed, folder, progress)


def _reconstruct(
    model: nn.Layer,
    images: list[tuple[np.ndarray, ...]],
    store: ActivationStore,
    settings: Reconstruction,
    seed: int,
    folder: Path | None,
    progress: ReconstructionProgress | None,
) -> Reconstructed:
    example = tuple(paddle.to_tensor(x[:_EXAMPLE]) for x in images[0])
    found = find_blocks(model, *example)
    layers = dict(model.named_sublayers(include_self=True))
    pairs = find_foldable(model, *example, quantized=True).pairs
    norms = {
        id(layers[name]): layers[norm]
        for name, norm in pairs
        if layers[norm].weight is not None and layers[norm].bias is not None
    }
    reference = copy.deepcopy(model)
    saved = (
        SavedProgress(folder, run_identity(model, images, found.blocks, settings, seed)) if folder else None
    )
    done = saved.count if saved else 0
    advance = progress.advance if progress is not None else lambda: None
    title, each = ("Reconstructing", settings.iterations) if settings.iterations else ("Compensating", 1)
    if progress is not None:
        progress.begin(title, len(found.blocks) * each, done * each)
    results, distilled = [], None
    with eval_mode(model), eval_mode(reference), unquantized(reference):
        originals = dict(reference.named_sublayers(include_self=True))
        passing = _Passing(store, images, (layers, model), (originals, reference))
        with unquantized(model, weights=False) if settings.full_inputs else nullcontext():
            for number, block in enumerate(found.blocks):
                data = passing.enter(block)
                if number < done:
                    results.append(BlockResult(**saved.load(number, block, layers)))
                else:
                    rng = np.random.default_rng([seed, number])
                    results.append(
                        _reconstruct_block(block, data, layers, originals, norms, settings, rng, advance)
                    )
                    if saved:
                        saved.save(number, block, layers, asdict(results[-1]))
                    if not settings.iterations:
                        advance()
                later = found.blocks[number + 1] if number + 1 < len(found.blocks) else None
                passing.leave(block, data, followed=later is not None and later.follows)
        if settings.distill:
            distilled = _distill(
                model, reference, found.blocks, norms, images, settings, seed, saved, progress
            )
    return Reconstructed(tuple(results), found.left_alone, distilled)


def _reconstruct_block(
    block: Block,
    data: BlockData,
    layers: dict[str, nn.Layer],
    originals: dict[str, nn.Layer],
    norms: dict[int, nn.Layer],
    settings: Reconstruction,
    rng: np.random.Generator,
    advance: Callable[[], None],
) -> BlockResult:
    """Compensate and train a block; it stays compensated where training does not help on images left out."""
    shown, unseen = data.split(_MEASURED)
    error = nearest = _error(block, layers, unseen)
    if settings.compensate:
        compensate_block(layers, originals, block, norms, shown)
        error = _error(block, layers, unseen)
    before = {key: tensor.clone() for key, tensor in block_state(block, layers).items()}
    window = find_window(partial(block.run, originals), shown, settings.crop)
    train_block(layers, block, norms, shown, window, settings, rng, advance=advance)
    learned = _error(block, layers, unseen)
    if learned > error:
        for key, tensor in block_state(block, layers).items():
            tensor.set_value(before[key])
        # Without iterations it only puts the weights on their grids.
        rounding = settings.model_copy(update={"iterations": 0})
        train_block(layers, block, norms, shown, window, rounding, rng)
    return BlockResult(block.name, nearest, min(learned, error))


def _distill(
    model: nn.Layer,
    reference: nn.Layer,
    blocks: Sequence[Block],
    norms: dict[int, nn.Layer],
    images: list[tuple[np.ndarray, ...]],
    settings: Reconstruction,
    seed: int,
    saved: SavedProgress | None,
    progress: ReconstructionProgress | None,
) -> tuple[float, float]:
    """Distill; keep it if it helps on images left out. Their error of answers before and after."""
    rows = [row for batch in images for row in zip(*batch, strict=True)]
    count = len(rows) - min(_MEASURED, len(rows) // 8)
    shown, unseen = rows[:count], rows[count:] or rows
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    error = answer_error(model, reference, unseen)
    options: dict[str, Any] = {}
    if saved:
        options |= {"start": saved.load_snapshot(settings), "keep": partial(saved.save_snapshot, settings)}
    if progress is not None:
        start = options.get("start")
        progress.begin("Distilling", settings.distill, start.step if start else 0)
        options["advance"] = progress.advance
    distill(model, reference, blocks, norms, shown, settings, seed, **options)
    learned = answer_error(model, reference, unseen)
    if learned > error:
        for key, tensor in model.state_dict().items():
            tensor.set_value(before[key])
    return error, min(error, learned)


def _kept(batches: Iterable[Inputs], store: ActivationStore) -> list[tuple[np.ndarray, ...]]:
    """The batches, since a loader may give others the next time."""
    kept = []
    for batch in batches:
        inputs = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
        kept.append(tuple(store.kept(x.numpy()) for x in inputs))
    if not kept:
        raise LowbitError("reconstruction got no images: give the batches that calibration took")
    return kept


def _error(block: Block, layers: dict[str, nn.Layer], data: BlockData) -> float:
    """The squared error of the quantized block, relative to the squares of its targets."""
    wrong = total = 0.0
    for at in range(0, len(data.target), 32):
        y = block.run(layers, paddle.to_tensor(data.quantized[at : at + 32])).numpy()
        target = data.target[at : at + 32]
        wrong += float(np.square(y - target, dtype=np.float64).sum())
        total += float(np.square(target, dtype=np.float64).sum())
    return wrong / max(total, 1e-30)


# ----------------------------------------------------------------------------------------------------------
# The images on their way through both networks, from block to block.


class _Stop(Exception):
    """Ends a forward pass: what comes after the wanted input is not computed."""


class _Passing:
    """Inputs and targets of one block after the other; each network comes as its layers and itself."""

    def __init__(
        self,
        store: ActivationStore,
        images: list[tuple[np.ndarray, ...]],
        quantized: tuple[dict[str, nn.Layer], nn.Layer],
        full: tuple[dict[str, nn.Layer], nn.Layer],
    ) -> None:
        self._store, self._images, self._quantized, self._full = store, images, quantized, full
        self._count = sum(len(batch[0]) for batch in images)
        self._next: tuple[np.ndarray, np.ndarray] | None = None

    def enter(self, block: Block) -> BlockData:
        """A block's data; all blocks before it are trained."""
        if self._next is None:
            self._next = self._collected(block, *self._quantized), self._collected(block, *self._full)
        quantized, full = self._next
        target = self._store.mapped(lambda x: block.run(self._full[0], x), full)
        return BlockData(quantized, full, target)

    def leave(self, block: Block, data: BlockData, *, followed: bool) -> None:
        """The block is trained; what it gives is the input of one that follows."""
        self._next = None
        if followed:
            output = self._store.mapped(lambda x: block.run(self._quantized[0], x), data.quantized)
            self._next = output, data.target
        else:
            self._store.free(data.target)
        self._store.free(data.quantized)
        self._store.free(data.full)

    def _collected(self, block: Block, layers: dict[str, nn.Layer], network: nn.Layer) -> np.ndarray:
        """What the block gets when the network runs on the images."""
        caught: list[Tensor] = []

        def catch(_layer: nn.Layer, given: tuple[Any, ...]) -> None:
            caught.append(given[0])
            raise _Stop

        def run() -> Iterator[Tensor]:
            for batch in self._images:
                try:
                    network(*map(paddle.to_tensor, batch))
                except _Stop:
                    yield caught.pop()

        hook = layers[block.modules[0]].register_forward_pre_hook(catch)
        try:
            return self._store.gathered(run(), self._count)
        finally:
            hook.remove()
