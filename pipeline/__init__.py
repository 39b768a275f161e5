"""The top floor: configuration, command line, demo and report."""
