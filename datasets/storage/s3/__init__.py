"""Stores in S3-compatible object storage."""
