"""Texts without secrets: of URLs, beside names such as DB_PASS, and of the environment."""

import json
import os
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

MASK = "***"
_SHORTEST_SECRET = 6
"""Characters of the shortest value of the environment that is masked wherever it stands."""

_SECRET_VARIABLE = re.compile(r"SECRET|TOKEN|PASSW|CREDENTIAL|_KEY(_|$)|AUTH", re.IGNORECASE)
_NAME_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""Parts of a name: DB_PASS, db-pass and dbPass have two."""
_SECRETS = {
    "passwords",
    "passcode",
    "pwd",
    "secrets",
    "credential",
    "credentials",
    "creds",
    "authorization",
    "accesskey",
    "secretkey",
    "privatekey",
    "cookie",
    "jwt",
}
_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "token", "apikey")
_SECRETS_OF_SOMETHING = {"pass", "pw", "auth", "sig", "signature"}
"""Last parts that name a secret only behind another part: "pass: 3" may count passes."""
_KEYS = {
    "api",
    "access",
    "secret",
    "private",
    "account",
    "encryption",
    "signing",
    "auth",
    "service",
    "shared",
    "master",
    "deploy",
    "storage",
    "client",
    "app",
    "session",
    "webhook",
    "ssh",
    "aws",
}
"""What a key is of that is a secret: a sort key is none."""
_UNIMPORTANT = {"value", "string", "text", "env", "base", "b", "hex", "json", "header"}
"""Last parts that say nothing, as in AUTH_STRING and TOKEN_1."""

_NAMED = re.compile(
    r"(?P<before>--|[?&]|\\*[\"'])?(?P<name>[A-Za-z][\w.-]*)(?P<close>\\*[\"'])?"
    r"(?P<equals>\s*[=:]\s*|(?<=\w)\s+)"
    r"(?:(?P<slashes>\\*)(?P<quote>[\"'])|(?P<scheme>(?:Bearer|Basic|Token|ApiKey|Negotiate)\s+)?)",
)
"""A name and what stands before its value: `--name `, `?name=`, `"name": "`, `Name: Bearer `."""
_UNQUOTED = re.compile(r"\S+")
_IN_QUERY = re.compile(r"[^\s&#\"']+")
_AFTER_VALUE = re.compile(r"[)\]},;:.\"']+$")
_COOKIES = re.compile(r"[^\n\"']+")

_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>\\?/\\?/)(?P<rest>\S+)")
_HOST = re.compile(
    r"localhost|\[[0-9a-fA-F:.]+\]|\d+(?:\.\d+){3}|[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}"
)
_PORT = re.compile(r"\d{1,5}")
_USERS_ONLY = {"ssh", "git+ssh", "sftp", "scp", "rsync", "svn+ssh"}
"""Schemes whose user is a name, never a token."""
_PLAIN_USERS = {"git", "hg", "svn", "anonymous", "ftp", "root"}
_TOKEN_USER_PASSWORDS = {"", "x", "x-oauth-basic"}
"""Passwords beside a token in the user's place."""
_LONGEST_USER = 24
_WEB_HOOKS = re.compile(
    r"((?:hooks\.slack\.com|discord(?:app)?\.com|[\w.-]+\.webhook\.office\.com|chat\.googleapis\.com"
    r"|api\.telegram\.org)/)[^\s\"'<>]+"
)
"""Addresses that let anybody post who knows them."""

_TOKENS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:gh[pousr]_\w{12,}|github_pat_\w{12,}|glpat-[\w-]{12,}|hf_\w{12,}|xox[a-z]-[\w-]{10,}"
    r"|sk-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|pn[ub]_\w{12,}|eyJ[\w-]{6,}\.[\w-]+\.[\w-]*)",
    re.DOTALL,
)
"""Texts that are secrets by their form: private keys and the tokens of well-known services."""
_BEARER = re.compile(r"\bBearer\s+(?=[\w~+/=.-]*[A-Z0-9.~+/=_-])[\w~+/=.-]{6,}")


def redacted(text: str) -> str:
    """A text without passwords, tokens and the values of secret environment variables.

    Where a URL or an assignment can be read in two ways, the one that masks more is taken.
    """
    for value in _environment_secrets():
        text = text.replace(value, MASK)
    text = _TOKENS.sub(MASK, text)
    text = _URL.sub(_url_without_password, text)
    text = _WEB_HOOKS.sub(rf"\1{MASK}", text)
    text = _without_named(text)
    return _BEARER.sub(f"Bearer {MASK}", text)


def is_secret_name(name: str, alone: bool = True) -> bool:
    """Whether a name is that of a secret, as DB_PASS, apiKey and x-auth-token are.

    Args:
        alone: whether "pass" and "auth" by themselves are, too; in prose they are not.
    """
    parts = [part.lower() for part in _NAME_PARTS.findall(name)]
    while parts and (parts[-1].isdigit() or (len(parts) > 1 and parts[-1] in _UNIMPORTANT)):
        parts.pop()
    if not parts:
        return False
    last = parts[-1]
    before = parts[:-1]
    if last == "key":
        return bool(_KEYS.intersection(before)) or (bool(before) and name.isupper())
    if last in _SECRETS_OF_SOMETHING:
        return alone or bool(before)
    return last in _SECRETS or last.endswith(_SECRET_ENDS)


def _environment_secrets() -> Iterator[str]:
    """The values of secret environment variables, as they are and as texts quote them."""
    secret = {
        value
        for name, value in os.environ.items()
        if _SECRET_VARIABLE.search(name) or is_secret_name(name)
    }
    values = {value for value in secret if len(value) >= _SHORTEST_SECRET}
    forms = {
        form
        for value in values
        for form in (
            value,
            " ".join(value.split()),
            repr(value)[1:-1],
            json.dumps(value)[1:-1],
            quote(value, safe=""),
            quote(value),
            quote_plus(value),
        )
    }
    yield from sorted(forms - {""}, key=len, reverse=True)  # one may hold another


def _without_named(text: str) -> str:
    """A text with the values masked that stand beside the name of a secret."""
    pieces = list[str]()
    done = 0
    while (value := _next_named(text, done)) is not None:
        begin, end = value
        pieces += [text[done:begin], MASK]
        done = end
    return "".join([*pieces, text[done:]])


def _next_named(text: str, begin: int) -> tuple[int, int] | None:
    """Begin and end of the first secret value from `begin` on."""
    position = begin
    while match := _NAMED.search(text, position):
        if (value := _value_of(text, match)) is not None:
            return value
        position = match.end("name")
    return None


def _value_of(text: str, match: re.Match[str]) -> tuple[int, int] | None:
    """Begin and end of the value beside a name; None where it is no secret."""
    before = match["before"] or ""
    name = match["name"]
    if not is_secret_name(name, alone=bool(before)):
        return None
    if match["equals"].isspace() and before != "--":  # prose: "the password is"
        return None
    begin = match.end()
    quotation = match["quote"]
    if quotation:
        closing = re.compile(r"(?<!\\)" + re.escape(match["slashes"] + quotation))
        end = closing.search(text, begin)
        return _not_empty(text, begin, end.start() if end else len(text))
    cookies = name.lower().endswith("cookie")
    form = _IN_QUERY if before in ("?", "&") else _COOKIES if cookies else _UNQUOTED
    value = form.match(text, begin)
    if value is None:
        return None
    words = value[0] if before in ("?", "&") else _AFTER_VALUE.sub("", value[0])
    if name.lower() == "token" and re.fullmatch(r"\d{1,5}", words):  # a token's number
        return None
    return _not_empty(text, begin, begin + len(words))


def _not_empty(text: str, begin: int, end: int) -> tuple[int, int] | None:
    return None if text[begin:end] in ("", MASK) else (begin, end)


def _url_without_password(match: re.Match[str]) -> str:
    """A URL without its password, or the token in its user's place."""
    remainder = match["rest"]
    scheme = match["scheme"].lower()
    before_quote = remainder.split('"', 1)[0]
    at = before_quote.rfind("@") if "@" in before_quote else remainder.rfind("@")
    userinfo = remainder[:at]
    if at < 0 or _is_address(userinfo, remainder[at + 1 :], scheme):
        return match[0]
    user, colon, password = userinfo.partition(":")
    if not colon:
        masked = user if scheme in _USERS_ONLY or user in _PLAIN_USERS else MASK
    else:
        hidden = password in _TOKEN_USER_PASSWORDS or len(user) > _LONGEST_USER
        masked = f"{MASK if hidden else user}:{MASK}"
    return f"{match['scheme']}:{match['slashes']}{masked}{remainder[at:]}"


def _is_address(text: str, after: str, scheme: str) -> bool:
    """Whether the text before an "@" is a host and a path, as in https://host/project@v1."""
    authority, *path = re.split(r"[/?#\\]", text, maxsplit=1)
    if not path or "@" in authority:
        return False
    host, colon, port = authority.rpartition(":")
    if colon:  # else a user, and a password that holds a slash
        is_host = _HOST.fullmatch(host) and _PORT.fullmatch(port)
        return bool(is_host and not _HOST.match(after))
    # A token that holds a slash, in the place of the user.
    looks_like_token = scheme.startswith("http") and not _HOST.fullmatch(authority)
    return not (looks_like_token and _HOST.match(after))
