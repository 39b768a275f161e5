"""Datasets of legged motion from simulators and experts, and policies learned from them."""
