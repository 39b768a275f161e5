"""Publishers' facts of a dataset: licence, citation, authors, description.

It is kept in the store's `about.json` with its SHA-256, is no part of the dataset and does not
change its hash. Cards and exports carry it.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from gaitforge.common.errors import DatasetError, disk_failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets.catalog.catalog import sealed, unsealed
from gaitforge.datasets.layout import ABOUT
from gaitforge.datasets.storage.store import PartStore

ABOUT_VERSION = 1
MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class About:
    """Publishers' facts of a dataset; DatasetError for a value that is not allowed.

    Attributes:
        licence: an SPDX identifier such as "CC-BY-4.0", or a name.
        citation: how to cite it, such as a BibTeX entry.
        authors: "Name" or "Name <address>" each.
        description, limitations: paragraphs of plain text.
    """

    licence: str = ""
    citation: str = ""
    authors: tuple[str, ...] = ()
    description: str = ""
    limitations: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "authors", tuple(self.authors))
        for name, value in asdict(self).items():
            for text in value if name == "authors" else (value,):
                if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
                    raise DatasetError(f"{name} needs text of up to {MOST_CHARACTERS} characters")
                lines = "" if name in ("licence", "authors") else "\n\t"
                if not all(character.isprintable() or character in lines for character in text):
                    raise DatasetError(f"{name} has control characters: {text!r:.60}")

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self) | {"authors": list(self.authors)}

    @property
    def texts(self) -> dict[str, str]:
        """Name -> text of each field that is not empty, authors joined."""
        joined = asdict(self) | {"authors": ", ".join(self.authors)}
        return {name: text for name, text in joined.items() if text}


def read_about(store: PartStore) -> About:
    """The content of a store's `about.json`; DatasetError if it is damaged."""
    try:
        content = (store.path / ABOUT).read_bytes()
        return About(**unsealed(content, "about_version", ABOUT_VERSION))
    except FileNotFoundError:
        return About()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{ABOUT} of {store.address} cannot be read: {error}") from error


def write_about(store: PartStore, about: About) -> None:
    """Replace a store's `about.json` atomically; DatasetError if the store cannot be written."""
    store.check_local("say it of a local store, and push that")
    store.check_writable()
    content = sealed({"about_version": ABOUT_VERSION, **about.to_json()})
    with disk_failures(f"cannot write to store {store.address}"):
        write_bytes_durably(store.path / ABOUT, content)


def joined_about(abouts: Iterable[About]) -> About:
    """What can be said of several datasets together.

    Authors and texts are those of all, and so is the licence, as an SPDX expression
    (https://spdx.github.io/spdx-spec/v2.3/SPDX-license-expressions/): a user has to keep to all of
    them. It is empty if one of the datasets names none, since that part's is unknown.
    """
    different = list(dict.fromkeys(abouts))
    licences = dict.fromkeys(about.licence for about in different)
    terms = [f"({text})" if " OR " in text and len(licences) > 1 else text for text in licences]
    texts = {
        name: "\n\n".join(dict.fromkeys(a.texts[name] for a in different if name in a.texts))
        for name in ("citation", "description", "limitations")
    }
    texts["licence"] = "" if "" in licences else " AND ".join(terms)
    authors = dict.fromkeys(author for about in different for author in about.authors)
    return About(authors=tuple(authors), **texts)
