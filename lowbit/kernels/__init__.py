"""C++ kernels on raw memory, and their Python bindings.

`csrc/` has the sources, in folders that each have a header of the same name to start with; `build` compiles
them when the package is installed, `library` finds and loads the result. The bindings take addresses, such
as `Tensor.data_ptr()`: `gemm` (convolutions and matrix products in integers), `unrounded` (the same of
operands that are quantized on the way), `quantization` (fp32 to integers and back, fake quantization), `norm`
(batch norm, activations, max-pool), `excitation` (squeeze-and-excitation of QAT), `optimizer` (update steps),
`fp32_winograd` (3x3 convolutions in fp32) and `fp32_depthwise` (grad_weight of depthwise ones).
"""

from lowbit.kernels.library import Kernels, kernels, runnable_variants, why_missing

__all__ = ["Kernels", "kernels", "runnable_variants", "why_missing"]
