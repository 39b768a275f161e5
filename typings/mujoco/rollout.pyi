# MuJoCo's compiled modules come without type stubs.
from typing import Any

def __getattr__(name: str) -> Any: ...
