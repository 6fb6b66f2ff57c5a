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
    return written(folder / Path(file).name, [changes.get(line, line) for line in lines])


def mutated(script: Path, old: str, new: str) -> Path:
    """Replace a part of a script by a mistake, once."""
    text = script.read_text()
    assert text.count(old) == 1, (script.name, old)
    return written(script.with_name(f"mutated-{script.name}"), text.replace(old, new).splitlines())


def is_to_be_changed(lines: list[str], place: int) -> bool:
    """Whether the paragraph up to a line has a "change:" comment."""
    paragraph: list[str] = []
    while place >= 0 and lines[place].strip():
        paragraph.append(lines[place])
        place -= 1
    return any(line.startswith("# change:") for line in paragraph)


def written(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path
