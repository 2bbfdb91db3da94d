"""PaddleSlim's older paths: `from lowbit.dygraph.quant import QAT` for `paddleslim.dygraph.quant`."""
