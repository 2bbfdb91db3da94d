"""The functions behind `import lowbit` and behind every command, loaded on first use.

| module | has |
|---|---|
| `quantize` | `quantize` and `calibrate` for a network of the user's own |
| `accelerate` | `accelerate`: the fast CPU path for any training loop |
| `deploy`, `writer` | `export`: which files are written; writing each format and measuring its gain |
| `verify`, `verification` | `verify`: whether exported files compute what was trained; its result |
| `advise` | `advise`: which form to deploy in which engine |
| `analysis` | `analyze`: the cost of each layer's quantization, bits under a budget |
| `runs` | train, calibrate and quantize runs from a config; open the models in them |
| `evaluation` | accuracy of runs and exported models, and inference on images |
| `data`, `result` | what a batch may be; results that print as tables |
"""
