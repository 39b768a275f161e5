"""The command line, experiments that ship, report, and what is served to Prefect."""

if __name__ != "gaitforge.pipeline":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.pipeline; to import another package called "
        "pipeline, start Python in another folder"
    )
