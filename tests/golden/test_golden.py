"""Files written by the first version of each format: read forever, and written again by the same commands.

A folder here is never changed. A new format gets a folder of its own beside it.
"""

import shutil
from pathlib import Path

import pytest

from pipeline.inspection import verify
from schemas import FORMAT_VERSION, shards
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.golden.write import NEWEST, commands
from trainer.data.folder import PairFolder

V1 = Path(__file__).parent / "v1"
RIVER = ["A river runs through the town.", "Boats follow it to the sea.", "Nobody counts them."]


def test_version_1_is_read() -> None:
    text = read_manifest(str(V1 / "text"), "text")
    table = shards.decode_table((V1 / "text" / text.shards[0].path).read_bytes(), "text", shards.TEXT_SCHEMA)
    assert [(row["document"], row["source"], row["sentences"]) for row in table.to_pylist()] == [
        (0xF396D47E0AD95E90, "golden", ["The cat sat on the mat.", "It was happy.", "The dog was not."]),
        (0x0D2576813C495195, "golden", ["Caf\u00e9s open early.", "\u4e2d\u6587 too."]),
        (0x8ED4DAE2F1E7DDEB, "golden", RIVER),
    ]
    vocabulary = read_vocabulary(str(V1 / "vocab"))
    assert (vocabulary.size, vocabulary.fingerprint) == (90, "44d5345a019847ae648f1da49b305ea9")
    folder = PairFolder(str(V1 / "pairs"))
    rows = folder.block((0,)).rows
    folder.close()
    first = [vocabulary.tokens[i] for i in rows.ids_T[: rows.offsets_B1[1]]]
    expected = "[CLS] no ##bo ##dy cou ##nt ##s the ##m . [SEP] the cat sat on the mat . it was hap ##py . [SEP]"
    assert " ".join(first) == expected
    assert rows.labels_B.tolist() == [1, 0, 0, 0]


def test_version_1_verifies() -> None:
    for name in ("text", "vocab", "pairs"):
        assert list(verify(str(V1 / name)))


@pytest.mark.skipif(not NEWEST.exists(), reason="python -m tests.golden.write has not been run for this format")
def test_the_same_commands_make_the_same_content(run, tmp_path: Path) -> None:
    """An algorithm that changes is a decision: it shows here and in the changelog."""
    for arguments in commands(tmp_path):
        done = run("python", "-m", "pipeline", *arguments)
        assert done.returncode == 0, done.stderr
    for kind in ("text", "vocab", "pairs"):
        made, golden = (read_manifest(str(folder / kind), kind) for folder in (tmp_path, NEWEST))
        assert made.fingerprint == golden.fingerprint
        assert made.totals == golden.totals


def test_vocabularies_and_pairs_are_made_from_text_of_version_1(run, tmp_path: Path) -> None:
    for arguments in commands(tmp_path)[1:]:
        read = [argument.replace(str(tmp_path / "text"), str(V1 / "text")) for argument in arguments]
        done = run("python", "-m", "pipeline", *read)
        assert done.returncode == 0, done.stderr
    assert read_manifest(str(tmp_path / "pairs"), "pairs").totals == read_manifest(str(V1 / "pairs"), "pairs").totals


def test_a_finished_folder_of_version_1_is_replaced_only_with_overwrite(run, tmp_path: Path) -> None:
    out = shutil.copytree(V1 / "text", tmp_path / "text")
    shard = ("python", "-m", "pipeline", *commands(tmp_path)[0])
    done = run(*shard)
    assert done.returncode == 2 and "holds a finished result" in done.stderr
    assert run(*shard, "--overwrite").returncode == 0
    assert read_manifest(str(out), "text").format_version == FORMAT_VERSION
