"""What serves the papers' figures: presets, measurements, trainings by PPO, other conditions."""
