"""Builds and checks what a release consists of: sdist, wheel and container image."""
