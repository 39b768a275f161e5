"""`python -m gaitforge`: the command line without the installed script."""

import sys

from gaitforge.pipeline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
