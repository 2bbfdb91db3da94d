"""From data and a model to a checkpoint. Read `loop` from top to bottom, then `step`.

| module | has |
|---|---|
| `loop`, `step` | the training loop; one step |
| `session`, `inputs` | all that the loop needs, built from a config; the data loaders |
| `optimizers`, `losses` | optimizers and learning rates; losses and distillation |
| `mixed_precision` | bf16 and fp16: levels and loss scaling |
| `quantization`, `post_training` | the config's recipe in a model; calibration without training |
| `recipe_schedule` | bits and scales that change during training |
| `finetune`, `config_check` | settings for `--finetune`; whether a config can be trained |
| `checkpoint`, `checkpoint_manager`, `resume` | the file; when it is written; what must be equal to go on |
| `trained_model`, `freeze_dynamic_scales` | a model out of a checkpoint; fixed scales for deployment |
| `evaluate`, `metrics`, `display` | accuracy; metrics.jsonl; progress |
| `run_directory`, `process` | the run's folder; ranks, random numbers, Ctrl-C |
"""
