"""Runners of a collection on Dask and Slurm, and what the Prefect flows share."""
