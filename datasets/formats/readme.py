"""The README of an export: YAML front matter as the Hugging Face Hub reads it, and text."""

import json
import re

from gaitforge.common.errors import amount
from gaitforge.datasets.selection.actions import actions_in_words
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.about import About, read_about

README = "README.md"
TAGS = ("robotics", "gaitforge", "locomotion", "offline-reinforcement-learning")


def front_matter(about: About, name: str, episodes: int, tags: tuple[str, ...] = ()) -> str:
    """The YAML of a dataset's card on the Hub: licence, name, tags, task and size category.

    Values are JSON, which YAML includes. A licence that is no identifier becomes `other`.
    """
    entries: dict[str, object] = {}
    if about.licence:
        is_identifier = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", about.licence)
        entries["license"] = about.licence.lower() if is_identifier else "other"
        if not is_identifier:
            entries["license_name"] = about.licence
    entries |= {
        "pretty_name": name,
        "tags": [*TAGS, *tags],
        "task_categories": ["robotics", "reinforcement-learning"],
        "size_categories": [_size(episodes)],
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    return "\n".join(["---", *lines, "---", ""])


def readme(selection: EpisodeSelection, name: str, load: str, tags: tuple[str, ...] = ()) -> str:
    """A README of a selection's export, with the texts of the store's `about.json`.

    Args:
        load: lines of Python that load it.
    """
    about = read_about(selection.store)
    schema = selection.schema
    lines = [front_matter(about, name, len(selection), tags), f"# {plain(name)}", ""]
    lines += [plain(about.description), ""] if about.description else []
    lines += [
        f"{amount(len(selection), 'episode')}, {amount(selection.steps, 'control step')} of "
        f"{schema.control_dt_s:g} s; robot {plain(schema.robot)}. Written by gaitforge from a "
        f"selection with the hash `{selection.hash}`.",
        "",
        "```python",
        load,
        "```",
        "",
    ]
    if words := actions_in_words(schema):
        lines += [f"Actions: {words}.", ""]
    titles = {"licence": "Licence", "authors": "Authors", "limitations": "Limitations"}
    for key, title in titles.items():
        if text := about.texts.get(key):
            lines += [f"## {title}", "", plain(text), ""]
    if about.citation:
        lines += ["## Citation", "", "```bibtex", fenced(about.citation), "```", ""]
    lines += ["## Fields", ""]
    for field in schema.fields:
        meaning = f"{plain(field.description)} ({plain(field.unit)})"
        lines.append(f"- `{field.name}` {list(field.shape)}, per {field.per}: {meaning}")
    return "\n".join([*lines, ""])


def plain(text: str) -> str:
    """Text as Markdown without HTML, links, pictures or fences of its own."""
    escaped = re.sub(r"(\\|<(?=[A-Za-z/!?]))", r"\\\1", text)
    return fenced(escaped.replace("](", "]\\("))


def fenced(text: str) -> str:
    """Text that cannot end the fence around it."""
    return text.replace("```", "'''")


def _size(count: int) -> str:
    """The Hub's category of a number of examples."""
    limits = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 10**6: "100K<n<1M"}
    return next((name for limit, name in limits.items() if count < limit), "1M<n<10M")
