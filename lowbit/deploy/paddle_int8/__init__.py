"""The int8 form for Paddle Inference: its convolutions multiply the integers that were trained."""
