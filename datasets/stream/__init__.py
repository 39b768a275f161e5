"""Batches of windows for training: exact order, pools, mixtures."""
