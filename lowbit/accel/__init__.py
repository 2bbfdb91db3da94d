"""The only package that replaces Paddle's operators or changes settings of the process.

| module | has |
|---|---|
| `op_overrides` | replaces operators and methods inside a `with`, in its thread only |
| `amp_autocast` | mixed precision: operators that are rounded to bf16 or fp16 |
| `convolutions`, `bf16_products` | convolutions in fp32, and products in bf16, by oneDNN |
| `onednn`, `onednn_objects` | oneDNN in Paddle's wheel: products; its C interface |
| `pointwise` | 1x1 convolutions by MKL in Paddle's wheel |
| `norm_ops`, `fused_norm` | batch norm, activations, pooling by lowbit's kernels; batch norm with a sum |
| `conv_norm`, `quantized_norm` | with its convolution in one node; quantized around its activation |
| `conv_norm_chain` | convolutions of QAT with quantized batch norms between them, as one node |
| `channel_ops` | steps of known blocks: a shortcut, products and means of channels |
| `optimizer_step` | Momentum, Adam and AdamW for all parameters in one call |
| `open_batch` | `fold` in programs for batches of any size |
| `process_settings` | the AMD fix, the allocator |

All of it is undone on exit. Users reach it by `lowbit.accelerate()`.
"""
