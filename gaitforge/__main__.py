"""`python -m gaitforge`: the command line without the installed script."""

import os
import sys

# As with the script, what lies in the present folder is not imported: it may be data.
if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]

from gaitforge.pipeline.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
