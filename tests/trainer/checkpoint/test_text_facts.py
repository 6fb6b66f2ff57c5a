"""What a run keeps about the text of its pairs: that of every phase, whatever has become of the pairs."""

from __future__ import annotations

import json
from pathlib import Path

from trainer.checkpoint.text_facts import keep_text_facts, read_text_facts
from trainer.data.folder import PairFolder


def test_the_pairs_of_later_phases_are_added(pairs: Path, held_out: Path, tmp_path: Path) -> None:
    folders = [PairFolder(str(path)) for path in (pairs, held_out)]
    for folder in folders:
        folder.close()
        keep_text_facts(str(tmp_path), [folder.manifest])
        keep_text_facts(str(tmp_path), [folder.manifest])

    found = read_text_facts(str(tmp_path))
    assert found.keys() == {folder.manifest.fingerprint for folder in folders}
    assert {facts.documents for facts in found.values()} == {folders[0].manifest.statistics["text"]["documents"]}


def test_pairs_of_earlier_versions_leave_nothing(pairs: Path, tmp_path: Path) -> None:
    folder = PairFolder(str(pairs))
    folder.close()
    del folder.manifest.statistics["text"]
    keep_text_facts(str(tmp_path), [folder.manifest])
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_written_again(pairs: Path, tmp_path: Path) -> None:
    folder = PairFolder(str(pairs))
    folder.close()
    for content in ("", "[1]", "{", json.dumps({"a": {"files": 1}}), "[" * 100_000, "\udcff"):
        (tmp_path / "text_facts.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        assert read_text_facts(str(tmp_path)) == {}
        keep_text_facts(str(tmp_path), [folder.manifest])
        assert read_text_facts(str(tmp_path)).keys() == {folder.manifest.fingerprint}
