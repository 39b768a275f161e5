"""Fourier Controller Network (FCNet): the model and its causal spectral convolution."""
