import json
from pathlib import Path

import pytest

from schemas import FORMAT_VERSION, manifest
from schemas.errors import DataError


def test_unknown_fields_are_refused_by_name(pairs: Path, tmp_path: Path) -> None:
    fields = json.loads((pairs / "manifest.json").read_text()) | {"colour": "red"}
    with pytest.raises(DataError, match="colour"):
        manifest.parse_manifest(json.dumps(fields).encode(), "manifest.json")


@pytest.mark.parametrize(("change", "advice"), [(1, "Upgrade it"), (-1, "Make the folder again")])
def test_another_format_is_refused(pairs: Path, change: int, advice: str) -> None:
    version = FORMAT_VERSION + change
    fields = json.loads((pairs / "manifest.json").read_text()) | {"format_version": version}
    with pytest.raises(DataError, match=rf"format version {version}.*{advice}"):
        manifest.parse_manifest(json.dumps(fields).encode(), "manifest.json")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff"])
def test_what_is_not_a_manifest_is_an_error(data: bytes) -> None:
    with pytest.raises(DataError, match=r"m\.json"):
        manifest.parse_manifest(data, "m.json")


def test_another_kind_says_how_to_make_the_right_one(text: Path) -> None:
    with pytest.raises(DataError, match=r"holds text, but pairs was expected.*clozeline pairs") as caught:
        manifest.read_manifest(str(text), "pairs")
    assert "--output" not in str(caught.value), "the folder of the text must not become the output"


def test_a_folder_that_is_not_there_can_be_the_output(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"`clozeline pairs --output {tmp_path}/new \.\.\.`"):
        manifest.read_manifest(str(tmp_path / "new"), "pairs")
