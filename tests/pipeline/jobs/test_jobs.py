"""The jobs as a user runs them: same bytes however they run, nothing lost when they are killed or refused."""

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.forked import Command
from tests.pipeline.readers.input_files import COMPRESS


def hashes(folder: Path) -> dict[str, str]:
    """Of every file in a folder but the manifest, which also names the inputs."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def chain(command, out: Path, source: str, *flags: object) -> dict[str, str]:
    """Hashes of text, vocabulary and pairs made from `source` with Beam's `flags`."""
    text, vocab = out / "text", out / "vocab"
    shape = ("--objective", "nsp", "--dupe_factor", 2, "--max_length", 48)
    for arguments in (
        ("shard", "--input", source, "--output", text, "--num_shards", 3),
        ("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 160),
        ("pairs", "--text", text, "--vocab", vocab, "--output", out / "pairs", *shape),
    ):
        done = command(*arguments, *flags)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
    return hashes(out)


@pytest.fixture(scope="module")
def whole(command, corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one worker makes of the corpus in one file."""
    out = tmp_path_factory.mktemp("whole")
    chain(command, out, str(corpus), "--direct_num_workers=1")
    return out


@pytest.mark.parametrize(
    ("num_files", "workers"),
    [(7, 2), pytest.param(1, 1, marks=pytest.mark.thorough), pytest.param(50, 5, marks=pytest.mark.thorough)],
)
def test_same_bytes_however_the_input_is_cut_ordered_and_compressed(
    command, corpus, whole, tmp_path, num_files: int, workers: int
) -> None:
    """And with any number of workers, whose bundles are run again."""
    lines = corpus.read_text().splitlines(keepends=True)
    names = []
    for i in range(num_files):
        suffix = [".zst", "", ".gz", ".bz2", ".xz"][i % 5]
        names.append(f"{tmp_path}/{(i * 17) % 101:03d}.jsonl{suffix}")
        Path(names[-1]).write_bytes(COMPRESS[suffix]("".join(reversed(lines[i::num_files])).encode()))
    flags = (f"--direct_num_workers={workers}", "--direct_runner_bundle_repeat=1")
    cut = chain(command, tmp_path / "cut", ",".join(reversed(names)), *flags)
    # Cards say how many files came in, with how many bytes.
    cards = {name for name in cut if name.endswith("card.html")}
    assert len(cards) == 2
    assert {**cut, **dict.fromkeys(cards)} == {**hashes(whole), **dict.fromkeys(cards)}
    fingerprints = [read_manifest(str(out / "pairs"), "pairs").fingerprint for out in (whole, tmp_path / "cut")]
    assert fingerprints[0] == fingerprints[1]


@pytest.mark.parametrize("files", [2_000, pytest.param(10_000, marks=pytest.mark.thorough)])
def test_thousands_of_tiny_files_are_a_few_tasks(command, tmp_path, files: int) -> None:
    (tmp_path / "in").mkdir()
    for i in range(files):
        (tmp_path / "in" / f"{i}.txt").write_text(f"Document number {i} of many. It is short.\n")
    done = command("shard", "--input", f"{tmp_path}/in/*.txt", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert read_manifest(str(tmp_path / "out"), "text").totals["documents"] == files


def test_rejected_records_are_kept_to_look_at(command, corpus, tmp_path) -> None:
    mixed, out = tmp_path / "mixed.jsonl", tmp_path / "out"
    mixed.write_text(corpus.read_text() + '["no object"]\n{"text": 7}\n')
    shard = ("shard", "--input", mixed, "--output", out)
    assert command(*shard, "--max_bad_ratio", 0.1).returncode == 0
    (kept,) = (out / "rejected").iterdir()
    told = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(record["reason"], record["shown"]) for record in told] == [
        ("line is not a JSON object", '["no object"]'),
        ("no text under 'text'", '{"text": 7}'),
    ]
    data = mixed.read_bytes()
    assert [data[record["place"] :].split(b"\n")[0].decode() for record in told] == [r["shown"] for r in told]
    ledger = {entry.reason: entry.count for entry in read_manifest(str(out), "text").ledger}
    assert ledger == {"line is not a JSON object": 1, "no text under 'text'": 1}
    mixed.write_text(corpus.read_text())
    assert command(*shard, "--overwrite").returncode == 0
    assert not (out / "rejected").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root; test_storage fakes the full disk")
def test_a_full_disk_names_what_it_needs_and_loses_nothing(run, corpus, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2000k", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not let its root mount; test_storage fakes the full disk")
    try:
        shard = ("python", "-m", "pipeline", "shard", "--input", corpus, "--output", disk / "out")
        shard += ("--direct_num_workers", 1)
        filler = disk / "filler"
        filler.write_bytes(b"x" * (1900 << 10))
        done = run(*shard)
        assert done.returncode == 5, done.stderr
        assert re.fullmatch(r"clozeline: The disk is full: .* needs [\d,]+ bytes and [\d,]+ are free.*\n", done.stderr)
        filler.unlink()
        assert run(*shard).returncode == 0
        assert not [name for name in os.listdir(disk / "out") if name.startswith(("_", "."))]
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("job", ["shard", "vocab", "pairs"])
def test_a_killed_job_run_again_ends_with_the_same_bytes(command, corpus, text, vocab, tmp_path, job) -> None:
    out, whole = tmp_path / "killed", tmp_path / "whole"
    flags = {
        "shard": ["--input", corpus, "--num_shards", 20],
        "vocab": ["--text", text, "--model", "wordpiece", "--size", 160],
        "pairs": ["--text", text, "--vocab", vocab, "--objective", "nsp", "--dupe_factor", 12],
    }[job]
    arguments = ["python", "-m", "pipeline", job, "--output", out, *flags, "--direct_num_workers=2"]
    pieces = 0
    while not (out / "manifest.json").exists():
        process = Command(arguments, stdout=subprocess.DEVNULL)
        target = pieces + 12
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError):  # a folder was removed while it was listed
                pieces = max(pieces, len(list(out.rglob("*.arrow.json"))))
            if pieces >= target:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        pieces = max(pieces, 1)
    assert command(job, "--output", whole, *flags).returncode == 0
    assert hashes(out) == hashes(whole)
    left = [path.name for path in out.iterdir() if not path.name.startswith("_")]  # a lease of the killed
    assert sorted(left) == sorted(path.name for path in whole.iterdir())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("shard --input {corpus} {out} --holdout 1", 2, "--holdout"),
        ("shard --input {corpus} {out} --drop_repeats=-1", 2, "'-1' is not a whole number above 0"),
        ("shard --input {corpus} {out} --drop_repeats=1.5", 2, "'1.5' is not a whole number above 0"),
        ("shard --input {corpus} {out} --max_bad_ratio 2", 2, "'2' is not a number from 0 to 1"),
        ("shard --input {corpus} {out} --max_bad_ratio nan", 2, "'nan' is not a number from 0 to 1"),
        ("shard --input {corpus} {out} --dedup all", 2, "invalid choice: 'all'"),
        ("shard --input {corpus} --output {pairs}", 2, "holds finished pairs; text needs a separate folder"),
        ("vocab --text {tmp}/none {out} --model wordpiece --size 99", 3, "holds no finished text"),
        ("vocab --text {text} {out} --model wordpiece --size 9", 3, "cannot hold"),
        ("vocab --text {text} {out} --model bytebpe --size 300 --lowercase", 2, "--lowercase changes nothing"),
        ("vocab --text {text} {out} --model unigram --size 99 --min_word_count 99999", 3, "occurs 99,999 times"),
        ("vocab --text {long} {out} --model wordpiece --size 99", 3, "2 of 2 different words have more than 100"),
        ("pairs --text {long} --vocab {vocab} {out} --objective nsp", 3, "this text has one. Cut it into documents"),
        ("pairs --text {text} --vocab {vocab} {out} --objective nsp --max_length 7", 2, "Give at least 8"),
        ("pairs --text {short} --vocab {vocab} {out} --objective sop", 3, "No row could be made"),
        ("pairs --text {text} --vocab {vocab} {out} --objective nsp --max_length 65536", 2, "Give at most 65535"),
        ("pairs --text {text} --vocab {byte} {out} --objective nsp --word_segmenter jieba", 2, "Use a wordpiece"),
        ("pairs --text {text} --vocab {vocab} {out} --objective nsp --masking x --static_masks 1", 2, "invalid choice"),
        ("pairs --text {short} --vocab {vocab} {out} --objective nsp", 3, "fewer than two sentences"),
        ("pairs --text {text} --vocab {unmasked} {out} --objective nsp", 3, "lacks the special tokens [MASK]"),
    ],
)
def test_bad_input_is_a_clear_error(
    command, corpus, text, vocab, byte_vocab, pairs, tmp_path, arguments, code, told
) -> None:
    texts = {"short": "One sentence.\n\nAnother one.\n", "long": "A" * 101 + "\n" + "C" * 150 + "\n"}
    for name in [name for name in texts if f"{{{name}}}" in arguments]:
        (tmp_path / f"{name}.txt").write_text(texts[name])
        shard = ("shard", "--input", tmp_path / f"{name}.txt", "--output", tmp_path / name)
        assert command(*shard, "--sentence_splitter", "newline").returncode == 0
    names = {"tmp": tmp_path, "out": f"--output {tmp_path}/x", "corpus": corpus, "text": text, "vocab": vocab}
    names |= {"byte": byte_vocab, "pairs": pairs, "unmasked": without_mask(vocab, tmp_path)}
    names |= {name: tmp_path / name for name in texts}
    done = command(*arguments.format(**names).split())
    assert (done.returncode, told in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
    assert not (tmp_path / "x" / "manifest.json").exists()


def without_mask(vocab: Path, tmp_path: Path) -> Path:
    """A copy of a vocabulary that names its mask token otherwise."""
    copy = shutil.copytree(vocab, tmp_path / "unmasked")
    tokenizer = copy / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("[MASK]", "[BLANK]"))
    return copy


def test_wild_words_and_a_size_that_the_text_cannot_fill(command, tmp_path) -> None:
    """NUL and words of 10^6 characters leave the text, a lone surrogate its record; the size reached is told."""
    lines = ['{"text": "a\\u0000b fine words."}', '{"text": "\\ud800 x."}', json.dumps({"text": "y" * 10**6 + " end."})]
    (tmp_path / "wild.jsonl").write_text("\n".join(lines))
    shard = ("shard", "--input", tmp_path / "wild.jsonl", "--output", tmp_path / "text", "--max_bad_ratio", 1)
    assert command(*shard).returncode == 0
    vocab = ("vocab", "--text", tmp_path / "text", "--output", tmp_path / "vocab", "--model", "wordpiece", "--size", 99)
    done = command(*vocab)
    tokens = (tmp_path / "vocab" / "vocab.txt").read_text().split("\n")[:-1]
    assert done.returncode == 0 and f"the text filled {len(tokens)} of the 99 tokens" in done.stdout
    assert all(len(token.removeprefix("##")) < 6 or token.startswith("[") for token in tokens)


def test_what_becomes_unknown_is_told_with_its_reason_and_a_remedy(command, tmp_path) -> None:
    (tmp_path / "in.txt").write_text("\n\n".join(f"{'x' * (101 + i)} ends\nafter {'y' * 120} here" for i in range(5)))
    text, vocab, pairs = (tmp_path / name for name in ("text", "vocab", "pairs"))
    shard = ("shard", "--input", tmp_path / "in.txt", "--output", text, "--sentence_splitter", "newline")
    assert command(*shard).returncode == 0
    made = command("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 60)
    reason = "10 of 10 unknown words are longer than WordPiece takes, as in scripts without spaces. Use --model unigram"
    assert made.returncode == 0 and "coverage 60.000% of 25 words" in made.stdout and reason in made.stderr
    ledger = {entry.reason: entry.count for entry in read_manifest(str(vocab), "vocab").ledger}
    assert ledger["different word too long for WordPiece, which becomes [UNK]"] == 6
    assert ledger["occurrence of a word too long for WordPiece"] == 10

    written = command("pairs", "--text", text, "--vocab", vocab, "--output", pairs, "--objective", "sop")
    assert written.returncode == 0 and "coverage 60.000% of 25 words" in written.stdout and reason in written.stderr

    (tmp_path / "other.txt").write_text("\u0434\u0430\n\u043d\u0435\u0442\n")
    other = tmp_path / "other"
    shard = ("shard", "--input", tmp_path / "other.txt", "--output", other, "--sentence_splitter", "newline")
    assert command(*shard).returncode == 0
    written = command("pairs", "--text", other, "--vocab", vocab, "--output", tmp_path / "p", "--objective", "sop")
    assert "coverage 0.000% of 2 words" in written.stdout and "was made from other text" in written.stderr
    held_out = other.rename(tmp_path / "text_heldout")
    written = command("pairs", "--text", held_out, "--vocab", vocab, "--output", tmp_path / "h", "--objective", "sop")
    assert "the held-out documents have characters that those of the vocabulary lack" in written.stderr

    cut = ("--model", "wordpiece", "--size", 60, "--max_alphabet", 9, "--overwrite")
    made = command("vocab", "--text", text, "--output", vocab, *cut)
    assert made.returncode == 0 and "left out or cut: 2 x different character left out of the alphabet" in made.stdout


def test_few_words_that_hold_much_of_the_text_are_a_loss_too(command, tmp_path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(["some words of a line"] * 100 + ["x" * 900]))
    shard = ("shard", "--input", tmp_path / "in.txt", "--output", tmp_path / "text", "--sentence_splitter", "newline")
    assert command(*shard).returncode == 0
    output = tmp_path / "vocab"
    vocab = ("vocab", "--text", tmp_path / "text", "--output", output, "--model", "wordpiece", "--size", 60)
    made = command(*vocab)
    assert "1 of 1 unknown words are longer than WordPiece takes" in made.stderr and "coverage 99.800%" in made.stdout


def test_a_changed_shard_ends_verify_and_the_next_job_with_its_name(command, text, vocab, tmp_path) -> None:
    copy = tmp_path / "text"
    copy.mkdir()
    for path in text.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shard = copy / "text-00001-of-00003.arrow"
    shard.write_bytes(shard.read_bytes()[:-10])
    for arguments in (
        ("verify", copy),
        ("vocab", "--text", copy, "--output", tmp_path / "v", "--model", "wordpiece", "--size", 160),
        ("pairs", "--text", copy, "--vocab", vocab, "--output", tmp_path / "p", "--objective", "nsp"),
    ):
        done = command(*arguments)
        assert done.returncode == 3 and shard.name in done.stderr and "Traceback" not in done.stderr


def test_a_failed_overwrite_loses_nothing(run, corpus, tmp_path) -> None:
    out, bad = tmp_path / "text", tmp_path / "bad.jsonl"
    bad.write_text("{\n" * 9)
    made = ("python", "-m", "pipeline", "shard", "--output", out, "--overwrite")
    assert run(*made, "--input", corpus).returncode == 0
    before = hashes(out)
    failed = run(*made, "--input", bad)
    assert failed.returncode == 3
    assert "100.00% of the records are bad" in failed.stderr and "Traceback" not in failed.stderr
    assert {name: digest for name, digest in hashes(out).items() if not name.startswith("_")} == before
    assert run("python", "-m", "pipeline", "verify", out).returncode == 0
