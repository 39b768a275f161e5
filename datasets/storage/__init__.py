"""Stores on disk or object storage: immutable parts, commits, checks."""
