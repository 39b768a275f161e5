"""README as a package index shows it, where links into the repository lead nowhere."""

import re
from collections.abc import Iterator
from pathlib import Path

README = "README.md"
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_ABSOLUTE = ("https://", "http://", "mailto:")


def links(text: str) -> Iterator[re.Match[str]]:
    """The links and pictures of a Markdown text, without its code: sign, words, target."""
    return _LINK.finditer(_FENCED.sub("", text))


def link_faults(tree: Path) -> list[str]:
    """What is wrong with README's links, before `absolute_links`: those to no file of the tree."""
    targets = (match[3].partition("#")[0] for match in links(_read(tree)))
    return [
        f"README links to {target}, which is not in the tree"
        for target in targets
        if target and not target.startswith(_ABSOLUTE) and not (tree / target).exists()
    ]


def check_address(url: str) -> None:
    """ValueError for a repository's address that no browser opens; an empty one is none."""
    if url and not url.startswith("https://"):
        raise ValueError(f"the repository's address begins with https://, unlike {url}")


def absolute_links(tree: Path, url: str, tag: str) -> None:
    """Let README's links lead to a repository's files at a tag, and the project's page to it.

    Args:
        tree: a copy of the tree, whose README and pyproject.toml are changed.
        url: the repository's address; empty for none, then links become words, and pictures go.

    Raises:
        ValueError: see `check_address`.
    """
    check_address(url)
    base = url.rstrip("/").removesuffix(".git")

    def replaced(match: re.Match[str]) -> str:
        sign, words, target = match.groups()
        if target.startswith(_ABSOLUTE):
            return match[0]
        if not base:
            return "" if sign else words
        if target.startswith("#"):
            return f"[{words}]({base}/blob/{tag}/{README}{target})"
        return f"{sign}[{words}]({base}/{'raw' if sign else 'blob'}/{tag}/{target})"

    text = _read(tree)
    parts = []
    start = 0
    for code in _FENCED.finditer(text):
        parts += [_LINK.sub(replaced, text[start : code.start()]), code[0]]
        start = code.end()
    parts.append(_LINK.sub(replaced, text[start:]))
    (tree / README).write_text("".join(parts), encoding="utf-8")
    project = tree / "pyproject.toml"
    settings = project.read_text(encoding="utf-8")
    if base and "[project.urls]" not in settings:
        project.write_text(
            f'{settings}\n[project.urls]\nRepository = "{base}"\n'
            f'Changelog = "{base}/blob/{tag}/CHANGELOG.md"\n',
            encoding="utf-8",
        )


def _read(tree: Path) -> str:
    return (tree / README).read_text(encoding="utf-8")
