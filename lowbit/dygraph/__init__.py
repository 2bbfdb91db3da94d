"""PaddleSlim's older path: `quant` is `paddleslim.dygraph.quant`, with its class `QAT`."""
