"""Speed as ratios: layers, training steps and exported models on this machine, interleaved. See `run`.

| module | has |
|---|---|
| `run` | `lowbit bench`: the sides take turns; the table of ratios |
| `sides`, `torch_side` | the training steps that are compared: fp32, QAT, low precision; PyTorch's |
| `own_loop` | a user's own loop under `lowbit.accelerate()` |
| `deployed` | exported models in each engine, against the fastest fp32 |
| `layer_bench` | the three products of single layers, against oneDNN and the instructions' peak |
"""
