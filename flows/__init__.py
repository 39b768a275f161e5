"""Collection, training, evaluation and the pipeline of them.

`stages/` are plain functions, run by `python -m flows NAME`; the modules here are the same as
Prefect flows. Each takes a frozen plan, leaves its results in files, and resumes from them.
"""
