"""The pages of the documentation, and the commands in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
}


def blocks(page: str, language: str) -> list[str]:
    """Return the content of a page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Return the words of every command that the page expects to work, in order.

    `make` and `source` belong to setting up an environment, which the test already runs in.
    """
    lines = "".join(blocks(page, "sh")).splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [command for command in words if command and command[0] not in ("make", "source")]


def prose(page: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", PAGES[page], flags=re.DOTALL | re.MULTILINE)


def code_spans(page: str) -> list[str]:
    """Return what stands between backticks in a page's text."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def is_no_recipe(block: str) -> bool:
    """Return whether a page's block of TOML is no part of a recipe, which its first line then says."""
    return block.startswith(("# review/task.toml", "sets = ", "[[corpus]]"))


def indented_blocks(page: str) -> list[str]:
    """Return the content of a page's blocks of indented lines."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGES[page], re.MULTILINE)
    return [textwrap.dedent(block) for block in found]
