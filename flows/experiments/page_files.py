"""Where the pages of an experiment's folder and of its store lie."""

from pathlib import Path


def page_of(out: Path, name: str) -> Path:
    """The page of the episodes of an evaluation, or of those that were collected."""
    return out / "episodes" / f"{name}.html"


def page_address(out: Path, name: str) -> str:
    """Address of an evaluation's page, relative to the run's folder; "" where there is none."""
    page = page_of(out, name)
    return page.relative_to(out).as_posix() if page.is_file() else ""


def card_of(store: Path) -> Path:
    """The page of a store's card."""
    return store.with_name(f"{store.name}.card") / "card.html"
