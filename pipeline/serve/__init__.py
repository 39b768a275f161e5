"""Prefect deployments and their server."""
