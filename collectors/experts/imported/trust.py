"""Programs in files that the user has allowed to run, by the SHA-256 of their content.

A TorchScript file is a program: it can read and overwrite any file of the user. So it runs only
where its content is on a list in the user's own configuration folder, which a command line writes
(`gaitforge expert import --trust`, `gaitforge expert trust`) and nothing else.
"""

import hashlib
import io
import os
import zipfile
from pathlib import Path

from gaitforge.common.errors import failures

_MAX_NAME = 200


def trusted_list() -> Path:
    """The user's list: `gaitforge/trusted-programs` in `XDG_CONFIG_HOME`, or in `~/.config`."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The specification of these folders says to ignore a relative path.
    base = configured if configured.is_absolute() else Path.home() / ".config"
    return base / "gaitforge" / "trusted-programs"


def trust_program(content: bytes, name: str) -> None:
    """Allow a program to run, now and later; `name` is for readers of the list.

    Raises:
        ValueError: the list cannot be written.
    """
    if is_trusted(content):
        return
    listed = trusted_list()
    with failures(f"{listed} cannot be written", OSError, error=ValueError):
        listed.parent.mkdir(parents=True, exist_ok=True)
        readable = "".join(letter if letter.isprintable() else "?" for letter in name)[:_MAX_NAME]
        # An edited list may lack its last line's end.
        line = f"\n{hashlib.sha256(content).hexdigest()}  {readable}\n"
        # One short write at the end: commands that trust at the same time lose no line.
        descriptor = os.open(listed, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as stream:
            stream.write(line.encode())
            os.fsync(stream.fileno())


def is_trusted(content: bytes) -> bool:
    """Whether the user has allowed this program; ValueError for a list that cannot be read."""
    listed = trusted_list()
    with failures(f"{listed} cannot be read", OSError, error=ValueError):
        if not listed.is_file():
            return False
        lines = listed.read_bytes().splitlines()
    digest = hashlib.sha256(content).hexdigest().encode()
    return any(line.split(maxsplit=1)[:1] == [digest] for line in lines)


def check_trusted(content: bytes, path: Path, remedy: str) -> None:
    """Raise ValueError unless the user has allowed this program; `remedy`: what allows it."""
    if not is_trusted(content):
        raise ValueError(
            f"{path} is TorchScript, a program that can read and overwrite any of your files, and "
            f"you have not allowed it to run: only if you know who made it, {remedy}; an ONNX file "
            "needs no such word"
        )


def check_torchscript(content: bytes, path: Path) -> None:
    """Raise ValueError for a file without code, such as a checkpoint; nothing of it runs."""
    try:
        names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    except zipfile.BadZipFile:
        names = []
    # Both kinds are archives with one folder; only TorchScript has code in it.
    if not any(name.split("/")[1:2] == ["code"] for name in names):
        raise ValueError(
            f"{path.name} is no TorchScript file; a checkpoint has to be exported first, as "
            "ONNX or TorchScript (rsl-rl: export_policy_to_onnx, export_policy_to_jit)"
        )
