"""Adds the pages at the root of the repository to the site (mkdocs.yml), and leads links to where they are there.

On GitHub the README is the first page and its links begin with docs/; on the site all pages are in one folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages, and the license that one of them links."""
    for name in (*PAGES, "LICENSE"):
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Return a page with its links as from a file in docs/."""
    return re.sub(r"\]\((?:docs/|\.\./)(?=[\w.]+(?:#|\)))", "](", markdown)
