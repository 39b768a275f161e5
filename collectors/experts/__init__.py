"""Legged experts: a corrected gait, trained by PPO."""
