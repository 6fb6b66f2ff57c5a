"""--overwrite: nothing of the old result is left, and none of it goes before the new one is ready."""

from __future__ import annotations

import shutil
import uuid

import pytest

from pipeline.commit import leases
from schemas import storage
from schemas.vocabulary import TOKENIZER_FILES


def listing(folder: str) -> set[str]:
    fs, path = storage.filesystem(folder)
    return {name.removeprefix(f"{path}/") for name in fs.find(path, withdirs=True) if name != path}


@pytest.mark.parametrize("place", ["disk", pytest.param("store", marks=pytest.mark.thorough)])
def test_no_job_leaves_a_file_of_its_earlier_output(command, corpus, text, vocab, byte_vocab, tmp_path, place) -> None:
    """Each first output has every kind of file that its job writes, the second as few as possible."""
    base = str(tmp_path) if place == "disk" else f"memory://overwrite/{uuid.uuid4().hex}"
    bad = tmp_path / "bad.jsonl"
    bad.write_text(corpus.read_text() + "{\n")
    published = shutil.copytree(vocab, tmp_path / "published")
    for name in TOKENIZER_FILES - {"tokenizer.json", "extension.json"}:
        (published / name).touch()

    shard, make = ("shard", "--input"), ("vocab", "--text", text)
    pairs, extend = ("pairs", "--text", text, "--objective"), ("--extend", published, "--add", 4, "--min_frequency", 1)
    extended, small = f"{base}/extended", ("--model", "unigram", "--size", 80)
    first_and_second = {
        "text": ((*shard, bad, "--num_shards", 5), (*shard, corpus, "--num_shards", 2)),
        "vocab": ((*make, *extend), (*make, *small)),
        "pairs": ((*pairs, "nsp", "--vocab", extended, "--dupe_factor", 3), (*pairs, "sop", "--vocab", byte_vocab)),
    }
    assert command(*make, *extend, "--output", extended).returncode == 0
    for kind, (first, second) in first_and_second.items():
        out, clean = f"{base}/{kind}", f"{base}/clean_{kind}"
        for flags in (
            (*first, "--output", out),
            (*second, "--output", out, "--overwrite"),
            (*second, "--output", clean),
        ):
            done = command(*flags, "--direct_num_workers=1")
            assert done.returncode == 0, done.stderr
        assert listing(out) == listing(clean)


def test_files_of_the_user_in_folders_that_belong_to_another_kind_stay(command, corpus, tmp_path) -> None:
    out = tmp_path / "out"
    (out / "vocabulary").mkdir(parents=True)
    (out / "vocabulary" / "words.txt").write_text("mine")
    assert command("shard", "--input", corpus, "--output", out).returncode == 0
    assert (out / "vocabulary" / "words.txt").read_text() == "mine"


def test_a_job_that_lost_its_lease_publishes_nothing(command, corpus, tmp_path, monkeypatch) -> None:
    """Another job may hold the folder by now, and its files must not be mixed with these."""
    real = leases.check_held

    def lost(output: str, token: str) -> None:
        storage.remove(leases.lease_url(output, token))
        real(output, token)

    monkeypatch.setattr(leases, "check_held", lost)
    done = command("shard", "--input", corpus, "--output", tmp_path / "out", "--direct_num_workers=1")
    assert done.returncode == 5 and "no longer held by this job" in done.stderr, done.stderr
    assert not list((tmp_path / "out").glob("*.arrow")) and not (tmp_path / "out" / "manifest.json").exists()
