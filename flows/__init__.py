"""Collection, training, evaluation and experiments: plans, stages, and what runs them."""

if __name__ != "gaitforge.flows":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.flows; to import another package called "
        "flows, start Python in another folder"
    )
