"""What a training run writes: history, events, checkpoints."""
