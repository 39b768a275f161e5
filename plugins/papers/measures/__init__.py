"""Measures: energy by frequency, times of control and training steps, masked attention."""
