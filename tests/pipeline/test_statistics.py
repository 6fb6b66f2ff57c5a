"""`python -m pipeline statistics`: the counts of whole folders, in any number of processes, and how it divides them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline import statistics as counting
from pipeline.inspection import inspect
from pipeline.statistics import (
    MAX_OCCURRENCES,
    MAX_PARTITIONS,
    PARTITION_OCCURRENCES,
    StatisticsPlan,
    check_size,
    stride_of,
)
from schemas.cooccurrences import MAX_WINDOW, Counting
from schemas.errors import UsageError
from schemas.manifest import NAME, read_manifest
from schemas.statistics import Statistics, read_statistics
from schemas.vocabulary import VOCABULARY_FOLDER, read_vocabulary
from tests import forked
from tests.conftest import made
from tests.forked import Command
from tests.schemas.test_cooccurrences import contexts_of, plain_loop

WINDOW = 4


@pytest.fixture(scope="module")
def statistics(command, pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return counts_of(command, pairs, tmp_path_factory.mktemp("counted") / "statistics")


def counts_of(command, pairs: Path, output: Path, *flags: object) -> Path:
    return made(command, output, "statistics", "--pairs", pairs, "--window", WINDOW, *flags)


def rows_of(pairs: Path) -> list[list[int]]:
    rows = []
    for shard in sorted(pairs.glob("*.arrow")):
        rows += pa.ipc.open_file(shard).read_all()["input_ids"].to_pylist()
    return rows


def weights_of(found: Statistics) -> dict[tuple[int, int], int]:
    weights = {}
    for first_C, second_C, weight_C in found.cooccurrences():
        for first, second, weight in zip(first_C.tolist(), second_C.tolist(), weight_C.tolist(), strict=True):
            assert (first, second) not in weights
            weights[first, second] = weight
    return weights


def test_the_counts_are_those_of_a_plain_loop(statistics: Path, pairs: Path) -> None:
    found = read_statistics(str(statistics))
    vocabulary = read_vocabulary(str(pairs / VOCABULARY_FOLDER))
    assert found.vocabulary_fingerprint == vocabulary.fingerprint
    assert found.vocabulary_size == vocabulary.size

    rows = rows_of(pairs)
    tokens = Counter(token for row in rows for token in row)
    weights = plain_loop(rows, WINDOW, vocabulary.special_ids)
    for special in vocabulary.special_ids:
        if special != vocabulary.special_id("unk"):
            tokens[special] = 0
    assert found.unigrams_V.tolist() == [tokens[token] for token in range(vocabulary.size)]
    assert weights_of(found) == weights
    assert found.context_weights_V.tolist() == contexts_of(weights, vocabulary.size)

    manifest = read_manifest(str(statistics), "statistics")
    assert manifest.totals == {"tokens": tokens.total(), "cooccurrences": len(weights)}
    assert manifest.statistics["weight"] == sum(weights.values())


def test_processes_do_not_show(command, statistics: Path, pairs: Path, tmp_path: Path, monkeypatch) -> None:
    """Nor does what another job has left unfinished."""
    monkeypatch.setattr(counting, "LOT_TOKENS", 1000)
    output = tmp_path / "statistics"
    (output / "_unfinished-0123456789abcdef").mkdir(parents=True)
    assert_same_files(counts_of(command, pairs, output, "--processes", 3), statistics)


def test_rare_cooccurrences_are_dropped_and_counted(command, statistics: Path, pairs: Path, tmp_path: Path) -> None:
    few = read_statistics(str(counts_of(command, pairs, tmp_path / "few", "--max_cooccurrences", 300)))
    least = few.manifest.statistics["least_weight"]
    all_weights = weights_of(read_statistics(str(statistics)))
    assert weights_of(few) == {pair: weight for pair, weight in all_weights.items() if weight >= least}
    assert 0 < len(weights_of(few)) <= 300

    (dropped,) = few.manifest.ledger
    assert dropped.count == len(all_weights) - len(weights_of(few))
    assert few.manifest.statistics["weight"] + few.manifest.statistics["dropped_weight"] == sum(all_weights.values())
    assert np.array_equal(few.unigrams_V, read_statistics(str(statistics)).unigrams_V)

    # The weight of all pairs with a token does not depend on which of them are kept.
    assert few.context_weights_V.tolist() == contexts_of(all_weights, few.vocabulary_size)


def test_several_partitions_that_drop_pairs_are_the_same_from_any_lots(
    command, pairs: Path, statistics: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition decides by itself what it drops."""
    monkeypatch.setattr(counting, "PARTITION_OCCURRENCES", 500 * WINDOW)
    outputs = [tmp_path / "one_lot", tmp_path / "lots"]
    for output, lot_tokens in zip(outputs, (10**9, 1000), strict=True):
        monkeypatch.setattr(counting, "LOT_TOKENS", lot_tokens)
        counts_of(command, pairs, output, "--max_cooccurrences", 300)
    assert_same_files(*outputs)

    few = read_statistics(str(outputs[0]))
    assert len(few.manifest.shards) > 2
    assert few.manifest.statistics["dropped_weight"] > 0
    assert np.array_equal(few.context_weights_V, read_statistics(str(statistics)).context_weights_V)


def assert_same_files(folder: Path, other: Path) -> None:
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in other.iterdir()
    }


def test_a_sample_is_counted_of_many_tokens(command, statistics: Path, pairs: Path, tmp_path: Path) -> None:
    everything = read_statistics(str(statistics))
    outputs = [tmp_path / "a", tmp_path / "b"]
    limit = read_manifest(str(pairs), "pairs").totals["tokens"] // 3
    for output in outputs:
        counts_of(command, pairs, output, "--max_tokens", limit)

    sampled = read_statistics(str(outputs[0]))
    assert (outputs[0] / NAME).read_bytes() == (outputs[1] / NAME).read_bytes()
    assert 0.2 < sampled.unigrams_V.sum() / everything.unigrams_V.sum() < 0.45
    assert sampled.unigrams_V.sum() <= limit
    assert (sampled.unigrams_V <= everything.unigrams_V).all()


def test_counts_of_nothing_are_refused(command, pairs: Path, tmp_path: Path) -> None:
    done = command("statistics", "--pairs", pairs, "--output", tmp_path / "none", "--max_tokens", 1)
    assert done.returncode == 3 and "no row was counted" in done.stderr, done.stderr
    assert not (tmp_path / "none" / NAME).exists()


def test_a_finished_folder_is_verified_shown_and_not_made_again(command, statistics: Path, pairs: Path) -> None:
    assert command("verify", statistics).returncode == 0
    shown = command("inspect", statistics)
    assert shown.returncode == 0 and " tokens " in shown.stdout
    assert command("inspect", statistics / "unigrams.arrow").returncode == 0

    same = ("statistics", "--pairs", pairs, "--output", statistics)
    again = command(*same, "--window", WINDOW)
    assert again.returncode == 0 and "already finished" in again.stderr
    other = command(*same, "--window", WINDOW + 1)
    assert other.returncode == 2 and "--window 4, and this command has 5" in other.stderr


def test_inspect_shows_tokens_while_the_pairs_are_there(statistics: Path, pairs: Path, tmp_path: Path) -> None:
    found = read_statistics(str(statistics))
    tokens = read_vocabulary(str(pairs / VOCABULARY_FOLDER)).tokens
    commonest = int(np.argmax(found.unigrams_V))
    count = found.unigrams_V[commonest]
    assert f"{count:>12,}  {tokens[commonest]}" in list(inspect(str(statistics / "unigrams.arrow"), 3))

    weights = weights_of(found)
    in_order = sorted(weights, key=lambda pair: (-weights[pair], pair))
    shown = [f"{weights[left, right]:>12,}  {tokens[left]}  {tokens[right]}" for left, right in in_order]
    lines = list(inspect(str(statistics), 40))
    assert [line for line in lines if line in shown] == shown[:40]
    first, second = in_order[0]
    heaviest = f"{weights[first, second]:>12,}  "

    elsewhere = tmp_path / "statistics"
    shutil.copytree(statistics, elsewhere)
    manifest = (elsewhere / NAME).read_text()
    (elsewhere / NAME).write_text(manifest.replace(str(pairs), str(tmp_path / "moved")))
    assert heaviest + f"token {first}  token {second}" in list(inspect(str(elsewhere), 1))


DIES_AFTER_A_PIECE = """
import os, signal, sys
from pipeline.cli import main
from schemas import storage

publish = storage.publish

def dying(url, data, **more):
    publish(url, data, **more)
    if "_unfinished-" in url and url.endswith(".json"):
        os.kill(os.getpid(), signal.SIGKILL)

storage.publish = dying
sys.exit(main(sys.argv[1:]))
"""


def test_a_job_killed_after_each_piece_ends_with_the_same_bytes(statistics: Path, pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "killed"
    words = ["statistics", "--pairs", str(pairs), "--output", str(output), "--window", str(WINDOW), "--processes", "1"]
    for number in (1, 2, 3):
        died = forked.run(["python", "-m", "tests.run_code", DIES_AFTER_A_PIECE, *words])
        assert died.returncode == -signal.SIGKILL, died.stderr
        assert len(list(output.glob("_unfinished-*/*.json"))) == number

    assert forked.run(["python", "-m", "pipeline", *words]).returncode == 0
    assert_same_files(output, statistics)


def test_processes_end_with_a_launcher_that_is_killed(statistics: Path, pairs: Path, tmp_path: Path) -> None:
    """SIGKILL as soon as they run, and after the first piece in staging. Then the job is run to its end."""
    output = tmp_path / "killed"
    command = ["python", "-m", "pipeline", "statistics", "--pairs", str(pairs), "--output", str(output)]
    command += ["--window", str(WINDOW), "--processes", "2"]
    for pieces in (0, 1):
        process = Command(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        family: list[psutil.Process] = []
        while process.poll() is None and not (family and len(list(output.glob("_unfinished-*/*.json"))) >= pieces):
            with contextlib.suppress(psutil.NoSuchProcess):
                family = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.001)
        process.kill()
        process.wait()
        assert family and not psutil.wait_procs(family, timeout=30)[1]

    assert forked.run(command).returncode == 0
    assert_same_files(output, statistics)


def test_a_process_that_is_killed_is_one_line(pairs: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    command = ["python", "-m", "pipeline", "statistics", "--pairs", str(pairs), "--output", str(output)]
    process = Command([*command, "--processes", "2"], stderr=subprocess.PIPE)
    killed = False
    while process.poll() is None and not killed:
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    killed = True
        time.sleep(0.01)
    _, shown = process.communicate(timeout=60)
    assert killed and process.returncode == 1, shown
    assert shown.startswith("clozeline: A process was killed") and shown.count("\n") == 1, shown
    assert not (output / NAME).exists()


def test_a_dry_run_touches_nothing(command, pairs: Path, tmp_path: Path) -> None:
    done = command("statistics", "--pairs", pairs, "--output", tmp_path / "out", "--dry_run")
    assert done.returncode == 0 and "nothing was written or removed" in done.stderr
    assert done.stdout.startswith("statistics: up to ") and "2 files" in done.stdout, done.stdout
    assert not (tmp_path / "out").exists()


def test_more_tokens_than_fit_into_memory_are_refused(
    command, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = read_manifest(str(pairs), "pairs").totals["tokens"]
    monkeypatch.setattr(counting, "MAX_OCCURRENCES", WINDOW * (tokens - 1) + 1)
    flags = ("--pairs", pairs, "--output", tmp_path / "out", "--window", WINDOW)
    done = command("statistics", *flags, "--max_tokens", 10**12)
    assert done.returncode == 2 and f"Give --max_tokens {tokens - 1}." in done.stderr, done.stderr
    assert not (tmp_path / "out").exists()
    assert command("statistics", *flags, "--max_tokens", tokens - 1).returncode == 0


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--window 17", "--window 17 is more than 16"),
        ("--window 0", "--window"),
        ("--max_tokens many", "--max_tokens"),
        ("--windw 3", "Did you mean --window?"),
        ("--runner FlinkRunner", "Unknown flag --runner. statistics runs on this machine, without Beam"),
        ("--direct_num_workers=4", "Unknown flag --direct_num_workers=4. statistics runs on this machine"),
        ("--no_wait", "Unknown flag --no_wait. statistics runs on this machine, without Beam"),
    ],
)
def test_mistakes_are_one_line(command, pairs: Path, tmp_path: Path, flags: str, told: str) -> None:
    done = command("statistics", "--pairs", pairs, "--output", tmp_path / "out", *flags.split())
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert not (tmp_path / "out").exists()


# How the work is divided

DEFAULT_WINDOW = 3
MILLION = 10**6


def plan_of(num_shards: int, tokens: int, max_tokens: int, window: int = DEFAULT_WINDOW) -> StatisticsPlan:
    counted = Counting(30_522, window, (0,), (0,))
    shards_read = len(range(0, num_shards, stride_of(num_shards, tokens, max_tokens)))
    tokens_read = tokens * shards_read // num_shards
    return StatisticsPlan("pairs", "", counted, num_shards, tokens, tokens_read, max_tokens, 50 * MILLION)


@pytest.mark.parametrize("num_shards", [1, 7, 64, 1000, 100_000])
@pytest.mark.parametrize("tokens", [10**6, 10**9, 3 * 10**12])
def test_the_plan_bounds_what_is_read_and_counted(num_shards: int, tokens: int) -> None:
    plan = plan_of(num_shards, tokens, 256 * MILLION)
    assert len(range(0, num_shards, plan.stride)) == plan.shards_read
    counted = plan.tokens_read * plan.share_of_rows
    assert counted <= 256_000_000 * 1.01
    assert counted >= 0.98 * min(tokens, 256_000_000)

    # Twice what is counted is read at most, or some 64 shards.
    assert plan.tokens_read <= 2 * 256_000_000 + tokens * 128 / num_shards or plan.stride == 1
    assert plan.partitions <= 64


def test_partitions_of_the_default_window_stay() -> None:
    """They are part of what a folder is made from: another number would drop other rare pairs."""
    sizes = {1: 1, 4 * MILLION: 1, 9 * MILLION: 2, 13 * MILLION: 4, 100 * MILLION: 32, 256 * MILLION: 64}
    assert {tokens: plan_of(64, 10**12, tokens).partitions for tokens in sizes} == sizes


@given(st.integers(1, 10**13), st.integers(1, 10**12), st.integers(1, MAX_WINDOW))
@example(MILLION, 10**15, 16)  # What counts are the tokens that there are.
@example(10**9, 10**9, 5)
def test_the_memory_of_a_partition_is_bounded_for_every_window(tokens: int, max_tokens: int, window: int) -> None:
    plan = plan_of(64, tokens, max_tokens, window)
    occurrences = min(tokens, max_tokens) * window
    if occurrences > MAX_OCCURRENCES:
        with pytest.raises(UsageError, match="would not fit into memory"):
            check_size(plan)
        return

    check_size(plan)
    assert plan.partitions <= MAX_PARTITIONS
    assert occurrences / plan.partitions < 2 * PARTITION_OCCURRENCES
    assert occurrences / plan.partitions > PARTITION_OCCURRENCES / 2 or plan.partitions == 1
