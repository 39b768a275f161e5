"""Collection and training as Slurm jobs."""
