"""Fourier Controller Network."""
