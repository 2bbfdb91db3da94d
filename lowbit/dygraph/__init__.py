"""PaddleSlim's older paths, in `quant`: `from lowbit.dygraph.quant import QAT` for `paddleslim.dygraph.quant`."""
