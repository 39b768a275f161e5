"""A policy: a network with its tokens, normalisers and Gaussian."""
