"""C++ kernels on raw memory, and their Python bindings.

csrc/ has the sources, in folders that each have a header of the same name to start with; build.py compiles
them when the package is installed, library.py finds and loads the result. The bindings take addresses, such
as `Tensor.data_ptr()`: gemm.py (convolutions and matrix products in integers), quantize.py (fp32 to integers
and back, fake quantization) and norm.py (batch norm, ReLU, max-pool). onednn.py calls the oneDNN in Paddle's
wheel.
"""

from lowbit.kernels.library import Kernels, kernels, runnable_variants, why_missing

__all__ = ["Kernels", "kernels", "runnable_variants", "why_missing"]
