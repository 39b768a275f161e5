"""Collection, training, evaluation, and pipelines of them.

`stages/` has plain functions, run by `python -m flows NAME`; the modules here wrap them as Prefect
flows. Each takes a frozen plan, writes its results to files, and resumes from them.
"""
