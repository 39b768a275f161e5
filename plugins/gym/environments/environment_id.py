"""An environment of someone else's as one text: "ID,name=value,…".

Plans, stores and runs keep this text, so that whoever reads them makes the same environment. What
it names as code is called only if the user's command line named it, too (`common.trust`).
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gaitforge.common.errors import listed
from gaitforge.common.trust import UntrustedCodeError, check_trusted, is_trusted

SETTINGS = ("max_steps", "success", "wrapper", "make.NAME", "reset.NAME")

TERMINATED = "terminated"
TRUNCATED = "truncated"
REWARDED = "rewarded"
"""Rules of success that need nothing from `info`."""

Values = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class EnvironmentId:
    """Settings of an environment to make.

    Attributes:
        place: an id of Gymnasium's registry, "module:ID" if a module registers it, or
            "module:function", which returns a `gymnasium.Env`.
        max_steps: control steps after which an episode is cut off; 0 for the registry's limit.
        success: the name in `info` that says whether an episode succeeded, or `TERMINATED`,
            `TRUNCATED` (it lasted to its time limit) or `REWARDED` (some reward was positive);
            empty for "success" or "is_success", whichever `info` has.
        wrappers: each "module:Class", the innermost first.
        make: keyword arguments for making it; reset: options of every reset.
    """

    place: str
    max_steps: int = 0
    success: str = ""
    wrappers: tuple[str, ...] = ()
    make: Values = ()
    reset: Values = ()

    def __str__(self) -> str:
        """The inverse of `parse`."""
        words = [f"max_steps={self.max_steps}"] if self.max_steps else []
        words += [f"success={self.success}"] if self.success else []
        words += [f"wrapper={wrapper}" for wrapper in self.wrappers]
        for kind in ("make", "reset"):
            words += [f"{kind}.{name}={_text(value)}" for name, value in getattr(self, kind)]
        return ",".join([self.place, *words])

    @property
    def code(self) -> list[str]:
        """The "module:name" of its maker, if it is one, and of its wrappers."""
        return [self.place] * (":" in self.place) + [*self.wrappers]

    @property
    def texts(self) -> list[str]:
        """The texts in the values of `make` and `reset`."""
        return [text for values in (self.make, self.reset) for text in _texts_in(dict(values))]

    def check_trusted(self) -> None:
        """Raise UntrustedCodeError for code, or a file, that the user did not name.

        Numbers and plain words pass in `make` and `reset`; a text with a colon, a slash, or a dot
        beside letters may be a module that the environment imports, or a file.
        """
        for name in self.code:
            check_trusted(name)
        for text in self.texts:
            if not is_trusted(text):
                raise UntrustedCodeError(text)

    @classmethod
    def parse(cls, text: str) -> "EnvironmentId":
        """Read "ID,name=value,…". Values of `make` and `reset` are JSON, or else text.

        Raises:
            ValueError: an unknown setting, or a value that does not fit.
        """
        address, *words = re.split(r",(?=[\w.]+=)", text)
        max_steps = 0
        success = ""
        wrappers: list[str] = []
        values: dict[str, dict[str, Any]] = {"make": {}, "reset": {}}
        for word in words:
            name, _, value = word.partition("=")
            kind, _, key = name.partition(".")
            if name == "max_steps":
                if not value.isdecimal() or not int(value):
                    raise ValueError(f"max_steps must be a number of at least 1, not {value!r}")
                max_steps = int(value)
            elif name == "success":
                success = value
            elif name == "wrapper":
                if not re.fullmatch(r"[\w.]+:\w+", value):
                    raise ValueError(f"a wrapper is module:Class, not {value!r}")
                wrappers.append(value)
            elif kind in values and key:
                values[kind][key] = _value(value)
            else:
                raise ValueError(
                    f"an environment has no setting {name!r}; allowed: {listed(SETTINGS)}"
                )
        make, reset = (tuple(sorted(settings.items())) for settings in values.values())
        return cls(address, max_steps, success, tuple(wrappers), make, reset)


def with_settings(env: str, words: Sequence[str]) -> str:
    """An environment's text with further settings, each "name=value"; ValueError for others."""
    if odd := [word for word in words if not re.match(r"[\w.]+=", word)]:
        raise ValueError(f"'{odd[0]}' is no setting; give NAME=VALUE")
    return str(EnvironmentId.parse(",".join([env, *words]))) if words else env


def succeeded(
    rule: str, info: dict[str, Any], reward: float, terminated: bool, truncated: bool
) -> bool | None:
    """Whether a step says that its episode succeeded, see `EnvironmentId`; None if it is silent."""
    if rule == TERMINATED:
        return terminated
    if rule == TRUNCATED:
        return truncated and not terminated
    if rule == REWARDED:
        return reward > 0
    value = info.get(rule) if rule else info.get("success", info.get("is_success"))
    return None if value is None else bool(value)


def _texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield key
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    plain = isinstance(value, str) and _value(value) == value
    return value if plain else json.dumps(value, separators=(",", ":"))
