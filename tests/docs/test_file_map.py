"""The file map of docs/architecture.md is the tree on the disk."""

from __future__ import annotations

import runpy
import subprocess

from tests.docs.pages import PAGES, ROOT

PAGE = PAGES["docs/architecture.md"]


def test_the_map_on_disk_is_up_to_date() -> None:
    generator = runpy.run_path(str(ROOT / "docs/file_map.py"))
    assert generator["page_with"](PAGE, generator["file_map"]()) == PAGE, "Run `make docs`."


def test_every_module_is_in_the_map_and_describes_itself() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = [name for name in listed.split() if not name.startswith("tests/") and not name.endswith("__init__.py")]
    assert len(modules) > 150
    for name in modules:
        folder, _, file = name.rpartition("/")
        section = PAGE.split(f"### {folder}/\n")[1].split("\n###")[0]
        line = next(line for line in section.splitlines() if line.startswith(f"- `{file}`:"))
        assert len(line) > len(f"- `{file}`: ") + 5, f"{name} has no docstring"
