"""The files of deploy/ as a user adapts them: a copy in which lines below a "change:" comment are other ones."""

from __future__ import annotations

from pathlib import Path

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def adapted(file: str, folder: Path, changes: dict[str, str]) -> Path:
    """Copy a file of deploy/ to a folder, with lines that users are told to change replaced by others."""
    lines = (DEPLOY / file).read_text().splitlines()
    for old in changes:
        assert lines.count(old) == 1, (file, old)
        assert is_to_be_changed(lines, lines.index(old)), f"{file} does not tell users to change: {old}"
    path = folder / Path(file).name
    path.write_text("".join(changes.get(line, line) + "\n" for line in lines))
    return path


def is_to_be_changed(lines: list[str], place: int) -> bool:
    """Whether the paragraph up to a line has a "change:" comment."""
    paragraph: list[str] = []
    while place >= 0 and lines[place].strip():
        paragraph.append(lines[place])
        place -= 1
    return any(line.startswith("# change:") for line in paragraph)
