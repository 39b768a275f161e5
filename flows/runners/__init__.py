"""Where the parts of a collection are made: here, on Dask, on Slurm, under Prefect."""
