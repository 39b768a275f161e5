"""Hook of mkdocs: notebooks of docs/ as pages, without outputs, which the repository does not hold.

Links of other pages to a notebook lead to its page, and the page to the notebook itself.
"""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_LINK = re.compile(r"(\]\((?!https?:)[^)\s#]+)\.ipynb(?=[)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for every notebook."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        assert file.abs_src_path is not None
        page = markdown_of(Path(file.abs_src_path))
        files.append(File.generated(config, f"{file.src_uri[:-6]}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to notebooks lead to their pages."""
    is_notebook = page.file.generated_by is not None
    return markdown if is_notebook else _LINK.sub(r"\1.md", markdown)


def markdown_of(notebook: Path) -> str:
    """A notebook's cells as Markdown, and a line that leads to the file."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [_text(cell) for cell in cells]
    texts.insert(
        1, f"This page is a notebook without its outputs: [{notebook.name}]({notebook.name})."
    )
    return "\n\n".join(texts) + "\n"


def _text(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    is_shell = all(line.startswith("!") for line in source.splitlines())
    return f"```{'sh' if is_shell else 'python'}\n{source}\n```"
