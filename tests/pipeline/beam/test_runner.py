"""The same corpus gives the same bytes on every runner, in every order of its records."""

from __future__ import annotations

import json
import random
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.commit.staging import Staging
from pipeline.jobs import pairs as pair_steps
from pipeline.jobs.pairs import PairsPlan, build_pair_shard, pair_shards
from pipeline.jobs.text_folder import TextFolder
from pipeline.options import PairsJob
from schemas import storage
from schemas.manifest import read_manifest
from schemas.vocabulary import TOKENIZER_FILE, read_vocabulary

GOLDEN_TEXT = Path(__file__).resolve().parents[2] / "golden" / "v2" / "text"
SYLLABLES = ["ba", "ko", "ri", "tu", "men", "sa", "lo", "vi", "den", "ar", "ish", "pel", "qu", "zo", "th", "ing"]
FILES = 4
SHARDS = 8

FINGERPRINTS = {
    "text": "976cdf51387862c671e1f360c02c1f27",
    "vocab": "50528f2b835455b5fe38b344de10be04",
    "pairs": "975e03d3fd2e8e4f171576f00352aed6",
}
"""Of the corpus below. A change here is a change of the output: it belongs in the changelog."""

ORDERS = ("as is", "reversed", "shuffled")


def make_records() -> list[dict[str, str]]:
    """Return 1,200 documents of many different words, in three sources.

    Some occur three times: with the same sentences, and with the same text cut into other sentences.
    """
    rng = random.Random(5)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(6000)]
    words += ["caf\u00e9", "\u4e2d\u6587", "don't", "3.14"]

    records = []
    for number in range(1200):
        sentences = []
        for _ in range(rng.randint(1, 20)):
            sentence = " ".join(rng.choices(words, k=rng.randint(3, 14)))
            sentences.append(sentence.capitalize() + rng.choice(".?!"))

        source = f"s{number % 3}"
        records.append({"text": " ".join(sentences), "source": source})
        if number % 10 == 0:
            records.append({"text": "\n\n".join(sentences), "source": source})
            records.append({"text": " ".join(sentences[:1]) + "\n\n" + " ".join(sentences[1:]), "source": source})
    return records


def write_corpus(folder: Path, order: str) -> Path:
    """Write the records to JSONL files, in an order: "as is", "reversed" or "shuffled"."""
    records = make_records()
    if order == "reversed":
        records.reverse()
    if order == "shuffled":
        random.Random(11).shuffle(records)

    folder.mkdir()
    for number in range(FILES):
        lines = (json.dumps(record) + "\n" for record in records[number::FILES])
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The corpus in three orders."""
    folder = tmp_path_factory.mktemp("orders")
    return {order: write_corpus(folder / order.replace(" ", "_"), order) for order in ORDERS}


def flags_of(runner: str, request: pytest.FixtureRequest) -> list[str]:
    """Return Beam's flags for a runner, after starting what it needs."""
    if runner == "4 threads":
        return ["--direct_running_mode=multi_threading", "--direct_num_workers=4"]
    if runner == "2 processes":
        return ["--direct_num_workers=2"]
    if runner == "job service":
        address = request.getfixturevalue("beam_job_service")
        return ["--runner=PortableRunner", f"--job_endpoint={address}", "--environment_type=LOOPBACK"]
    return ["--runner=PrismRunner", f"--prism_location={request.getfixturevalue('prism')}"]


def make_chain(command, out: Path, corpus: Path, flags: list[str]) -> dict[str, bytes]:
    """Run shard, vocab and pairs with Beam's `flags`. Return the bytes of every file but the manifests."""
    # As in a new process: encoders that have seen the corpus have nothing left to get wrong.
    for value in vars(pair_steps).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()

    text, vocab, pairs = (out / name for name in ("text", "vocab", "pairs"))
    jobs = (
        ("shard", "--input", f"{corpus}/*.jsonl", "--output", text, "--num_shards", SHARDS),
        ("vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", 1000),
        ("pairs", "--text", text, "--vocab", vocab, "--output", pairs, "--objective", "nsp", "--max_length", 64),
    )
    for arguments in jobs:
        done = command(*arguments, *flags)
        assert done.returncode == 0, done.stderr

    files = sorted(path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def fingerprints_of(out: Path) -> dict[str, str]:
    """Return the fingerprints that the three manifests state."""
    return {kind: read_manifest(str(out / kind), kind).fingerprint for kind in FINGERPRINTS}  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def one_worker(command, corpora, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """The folder and the files that one worker makes."""
    out = tmp_path_factory.mktemp("one_worker")
    return out, make_chain(command, out, corpora["as is"], ["--direct_num_workers=1"])


@pytest.mark.parametrize(
    ("runner", "order"),
    [
        ("4 threads", "reversed"),
        ("job service", "reversed"),
        ("Prism", "shuffled"),
        pytest.param("2 processes", "shuffled", marks=pytest.mark.thorough),
    ],
)
def test_every_runner_and_order_gives_the_golden_bytes(
    command, request: pytest.FixtureRequest, corpora, one_worker, tmp_path: Path, runner: str, order: str
) -> None:
    folder, expected = one_worker
    assert fingerprints_of(folder) == FINGERPRINTS

    found = make_chain(command, tmp_path, corpora[order], flags_of(runner, request))
    assert fingerprints_of(tmp_path) == FINGERPRINTS
    assert found == expected


def build_in_threads(folder: Path, text: Path, vocab: Path, threads: int) -> dict[str, bytes]:
    """Build every pair shard in one process, `threads` at a time, as an engine does with several bundles."""
    job = PairsJob(text=str(text), vocab=str(vocab), output=str(folder), objective="nsp", max_length=64)
    # The space tells this vocabulary from the one that the fixture encoded with: its encoder remembers nothing yet.
    tokenizer_json = storage.read(storage.join(str(vocab), TOKENIZER_FILE)) + b" "
    model = read_vocabulary(str(vocab)).model
    described = TextFolder.of(str(text), read_manifest(str(text), "text"))
    plan = PairsPlan(job, tokenizer_json, model, described, Staging(str(folder), "race"))
    targets = [target for _, target in pair_shards(0, plan)]
    barrier = threading.Barrier(threads)
    failures: list[BaseException] = []

    # Three documents first, alone: if all threads began at once, each would make its own encoder in any case.
    warm_up = replace(
        plan,
        text=TextFolder.of(str(GOLDEN_TEXT), read_manifest(str(GOLDEN_TEXT), "text")),
        staging=Staging(str(folder), "warm_up"),
    )
    _, first_target = next(pair_shards(0, warm_up))
    build_pair_shard(first_target, warm_up)

    def work(first: int) -> None:
        barrier.wait()
        try:
            for target in targets[first::threads]:
                build_pair_shard(target, plan)
        except BaseException as failure:
            failures.append(failure)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures[0]

    return {target.name: plan.staging.piece(target.name) for target in targets}


def test_threads_of_one_process_build_the_same_shards(one_worker, tmp_path: Path) -> None:
    """Encoders cache what they have seen; two threads in one cache mix up the ids of words, mostly without an error."""
    out, files = one_worker
    expected = {path.removeprefix("pairs/"): data for path, data in files.items() if path.startswith("pairs/pairs-")}
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        found = build_in_threads(tmp_path / "out", out / "text", out / "vocab", SHARDS)
    finally:
        sys.setswitchinterval(interval)

    differing = [name for name in expected if found[name] != expected[name]]
    assert not differing, f"{len(differing)} of {len(expected)} shards differ"
