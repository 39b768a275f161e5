"""Collection, training, evaluation, and pipelines of them.

`stages/` has plain functions, run by `python -m gaitforge.flows NAME`; the modules here wrap them
as Prefect flows. Each takes a frozen plan, writes its results to files, and resumes from them.
"""

if __name__ != "gaitforge.flows":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.flows; to import another package called "
        "flows, start Python in another folder"
    )
