"""Files of the current format: they are read, and the same commands make their content again."""

from pathlib import Path

from pipeline.verification import verify
from schemas import shards
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.golden.write import NEWEST, commands
from trainer.data.folder import PairFolder

RIVER = ["A river runs through the town.", "Boats follow it to the sea.", "Nobody counts them."]


def test_the_golden_folders_are_read() -> None:
    text = read_manifest(str(NEWEST / "text"), "text")
    table = shards.decode_table((NEWEST / "text" / text.shards[0].path).read_bytes(), "text", shards.TEXT_SCHEMA)
    assert [(row["document"], row["source"], row["sentences"]) for row in table.to_pylist()] == [
        (0xF396D47E0AD95E90, "golden", ["The cat sat on the mat.", "It was happy.", "The dog was not."]),
        (0x0D2576813C495195, "golden", ["Caf\u00e9s open early.", "\u4e2d\u6587 too."]),
        (0x8ED4DAE2F1E7DDEB, "golden", RIVER),
    ]
    vocabulary = read_vocabulary(str(NEWEST / "vocab"))
    assert (vocabulary.size, vocabulary.fingerprint) == (90, "44d5345a019847ae648f1da49b305ea9")
    folder = PairFolder(str(NEWEST / "pairs"))
    rows = folder.block((0,)).rows
    folder.close()
    first = [vocabulary.tokens[i] for i in rows.ids_T[: rows.offsets_B1[1]]]
    expected = "[CLS] no ##bo ##dy cou ##nt ##s the ##m . [SEP] the cat sat on the mat . it was hap ##py . [SEP]"
    assert " ".join(first) == expected
    assert rows.labels_B.tolist() == [1, 0, 0, 0]


def test_the_golden_folders_verify() -> None:
    for name in ("text", "vocab", "pairs"):
        assert list(verify(str(NEWEST / name)))


def test_the_same_commands_make_the_same_content(run, tmp_path: Path) -> None:
    """An algorithm that changes is a decision: it shows here and in the changelog."""
    for arguments in commands(tmp_path):
        done = run("python", "-m", "pipeline", *arguments)
        assert done.returncode == 0, done.stderr
    for kind in ("text", "vocab", "pairs"):
        made, golden = (read_manifest(str(folder / kind), kind) for folder in (tmp_path, NEWEST))
        assert made.fingerprint == golden.fingerprint
        assert made.totals == golden.totals
