"""Post-training quantization that learns how to round; start with `reconstruction.reconstruct`.

| module | has |
|---|---|
| `reconstruction` | the loop over the blocks of a network: inputs, targets, progress, resuming |
| `blocks` | the blocks: residual modules, else layers with what follows them |
| `block_training` | the training of one block |
| `distillation` | the training of all blocks together, afterwards |
| `saved_progress` | blocks that are done, in a folder, for a run that goes on after a kill |
| `learned_rounding` | weights between two integers (AdaRound), inputs with learned steps |
| `compensation` | rounding errors made up for by later weights (GPTQ), where learned rounding starts |
| `block_data` | inputs and targets of a block, in memory or on disk, and batches or windows of them |
| `equalization` | cross-layer equalization |
"""

from lowbit.ptq.equalization import equalize
from lowbit.ptq.reconstruction import BlockResult, Reconstructed, reconstruct

__all__ = ["BlockResult", "Reconstructed", "equalize", "reconstruct"]
