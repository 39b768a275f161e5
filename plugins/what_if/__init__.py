"""Stored episodes and what if: fields added, new rewards, and one thing changed."""
