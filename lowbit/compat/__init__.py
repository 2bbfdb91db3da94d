"""The interfaces of other libraries: code written for them needs another import line only.

`paddleslim` is PaddleSlim's `QAT`. `scripts/` has the scripts of Paddle's model repositories.
"""
