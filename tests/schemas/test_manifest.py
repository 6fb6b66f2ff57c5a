from pathlib import Path

import pytest

from schemas import manifest
from schemas.errors import DataError


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
