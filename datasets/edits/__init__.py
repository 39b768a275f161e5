"""Edits of stores: drop, annotate, trim, merge, split, and the difference of two versions."""
