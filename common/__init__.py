"""What all floors share and no dataset is needed for: errors, files, locks, trust, extensions."""

if __name__ != "gaitforge.common":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.common; to import another package called "
        "common, start Python in another folder"
    )
