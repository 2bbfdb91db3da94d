"""The scripts that Paddle's model repositories have, with their options and defaults.

| module | script |
|---|---|
| `train` | `train.py` |
| `train_quantized` | `tools/train_qt.py`, `tools/train_qat.py`, `tools/eval_qt.py` |
| `export_infer` | `tools/export_model.py`, `infer.py` of `deploy/inference_python` and `deploy/onnx_python` |
| `post_quant` | `deploy/ptq_python/post_quant.py` and `eval.py` |
"""
