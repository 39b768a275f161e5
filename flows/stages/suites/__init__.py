"""Suites: fixed learners on fixed sets of episodes, trained, scored and compared with intervals."""
