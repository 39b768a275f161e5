"""Policies that track a clip, and their training."""
