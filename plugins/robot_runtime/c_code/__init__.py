"""Policies as C99 without dependencies, and the loop that runs such files here."""
