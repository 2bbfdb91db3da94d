"""Training speed as ratios: layers and whole steps, interleaved, on this machine. Start with `run`.

| module | has |
|---|---|
| `run` | `lowbit bench`: the sides take turns; the table of ratios |
| `sides`, `torch_side` | the training steps that are compared: fp32, QAT, low precision; PyTorch's |
| `own_loop` | a user's own loop under `lowbit.accelerate()` |
| `layer_bench` | the three products of single layers, against oneDNN and the instructions' peak |
"""
