"""Measures of the papers' figures that need no training."""
