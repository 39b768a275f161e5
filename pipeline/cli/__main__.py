"""`python -m pipeline.cli`: the command line without the installed script."""

from pipeline.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
