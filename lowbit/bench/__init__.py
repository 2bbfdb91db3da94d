"""Speed, measured as ratios: layers and whole training steps, in turns, on the machine at hand."""
