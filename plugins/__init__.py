"""Plug-ins: a folder for each subject beside the mission's own, known by its entry points alone."""
