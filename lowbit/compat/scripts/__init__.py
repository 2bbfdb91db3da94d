"""The scripts that Paddle's ecosystem knows, with its options and defaults, over the same functions."""
