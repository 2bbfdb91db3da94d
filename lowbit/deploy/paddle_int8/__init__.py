"""int8 programs for Paddle Inference, whose convolutions multiply the trained integers.

`export_int8` writes and compares a program; `program` traces the model; `integer_conv` has the convolutions.
"""
