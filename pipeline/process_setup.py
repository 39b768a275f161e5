"""Set-up before libraries load: environment variables, standard streams, user and home."""

import atexit
import getpass
import io
import os
import sys
import tempfile
import warnings

_DEFAULTS = {
    # Threads of a pool that wait by spinning for long take the cores from those that work; without
    # any spinning two threads train no faster than one.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "10000",
    "OPENBLAS_NUM_THREADS": "1",
    # No usage statistics from Prefect's server.
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # Seconds; the default of 20 is too short on a busy machine.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
}
"""Defaults of environment variables; the user's own settings stay."""


def prepare_process() -> None:
    """Set what is missing: variables, standard streams, the user's name and home."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # Takes the closed stream's number; else the next file would get what libraries print.
            stream = open(os.devnull, mode)  # noqa: SIM115
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # "?" for what the terminal's encoding lacks
    # `check_prefect_home` says it where it matters.
    warnings.filterwarnings("ignore", "Failed to create the Prefect home directory")
    _name_user()


def finish_output() -> None:
    """Print what is left; drop it where its reader has gone or the disk is full."""
    try:
        sys.stdout.flush()
    except OSError:  # else Python would try again as it ends, and say so
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _name_user() -> None:
    """Name a user whom the system does not know, as in containers, and make a missing home.

    That home is temporary, for this process and those that it starts.
    """
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["USER"] = f"user-{os.getuid()}"
    home = os.path.expanduser("~")
    if not (os.path.isabs(home) and os.path.isdir(home)):
        folder = tempfile.TemporaryDirectory(prefix="gaitforge-home-", ignore_cleanup_errors=True)
        atexit.register(folder.cleanup)
        os.environ["HOME"] = folder.name
