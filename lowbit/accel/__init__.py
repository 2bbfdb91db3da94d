"""The only package that replaces Paddle's operators or changes settings of the process.

`op_overrides` replaces operators of `paddle._C_ops` inside a `with` and in its thread. The replacements are
`convolutions` (by `onednn`, as are `bf16_products`) and `norm_ops` (by lowbit's kernels); `fused_norm` is
batch norm with a residual sum and a ReLU as one autograd node, `optimizer_step` an optimizer's step in one
call. `process_settings` has the AMD fix and the allocator. All of it is undone on exit. Users reach
it by `lowbit.accelerate()`.
"""
