"""Files that a training run writes: history, events, checkpoints."""
