"""The stages of the pipeline as plain functions, without Prefect."""
