"""The top floor: configuration, command line, demo and report."""

if __name__ != "gaitforge.pipeline":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.pipeline; to import another package called "
        "pipeline, start Python in another folder"
    )
