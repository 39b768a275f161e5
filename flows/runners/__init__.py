"""Runners, which do a list of stages elsewhere: on Dask, as Slurm jobs, in a Prefect run."""
