"""Comparisons of models: their runs, their summary, and the comparison on legged data."""
