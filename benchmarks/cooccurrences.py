"""Measures `statistics`: time, memory and output size, on pairs whose tokens are drawn from a mixture of Zipf topics.

    python benchmarks/cooccurrences.py OUT [--tokens 250000000] [--vocabularies 30522 128000] [-- flags of the command]

The pairs are generated without a corpus. A gigabyte of English has about 250 million tokens with a vocabulary of 30,522
tokens. The tokens of a row share a topic, so that, as in text, some pairs of tokens occur far more often than by
chance. The command runs as a user would run it. This file is not called statistics.py, because that would hide the
standard library's module of that name from the scripts in this folder.

Shape suffixes: B rows of a shard, T tokens of a shard, V ordinary tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_pairs import manifest_of, random_rows, write_table, write_vocabulary
from schemas.manifest import NAME
from schemas.shards import shard_name
from schemas.vocabulary import VOCABULARY_FOLDER

Ints = NDArray[np.int64]

MAX_LENGTH = 128
TOKENS_PER_SHARD = 2_000_000
TOPICS = 64
TOPIC_SHARE = 0.5
"""The fraction of a row's tokens that are drawn from its topic. The others come from one distribution for all rows."""

SECONDS_BETWEEN_LOOKS = 0.2


class Topics:
    """Draws tokens by Zipf's law with exponent 1. Each topic applies the law to its own permutation of the tokens."""

    def __init__(self, ordinary_ids_V: Ints) -> None:
        random = np.random.default_rng(0)
        self._tokens_V = ordinary_ids_V
        self._topics = [random.permutation(ordinary_ids_V) for _ in range(TOPICS)]

    def draw(self, lengths_B: Ints, random: np.random.Generator) -> Ints:
        """Return the token ids, int64 (T,), of rows of these lengths, concatenated."""
        tokens = int(lengths_B.sum())

        # Ranks that are uniform on a logarithmic scale follow Zipf's law with exponent 1.
        ranks_T = (np.exp(random.random(tokens) * np.log(len(self._tokens_V) + 1)) - 1).astype(np.int64)
        ids_T = self._tokens_V[ranks_T]

        topic_T = np.repeat(random.integers(0, TOPICS, len(lengths_B)), lengths_B)
        is_of_topic_T = random.random(tokens) < TOPIC_SHARE
        for number, topic_V in enumerate(self._topics):
            chosen_T = is_of_topic_T & (topic_T == number)
            ids_T[chosen_T] = topic_V[ranks_T[chosen_T]]
        return ids_T


def write_topic_pairs(folder: Path, tokens: int, vocabulary_size: int) -> None:
    """Write a finished folder of pairs with about `tokens` tokens. The same arguments write the same bytes."""
    folder.mkdir(parents=True)
    vocabulary = write_vocabulary(folder / VOCABULARY_FOLDER, "wordpiece", vocabulary_size)
    topics = Topics(np.array(vocabulary.ordinary_ids))
    count = max(1, tokens // TOKENS_PER_SHARD)

    written = []
    lengths = []
    for index in range(count):
        random = np.random.default_rng([1, index])
        lengths_B = _lengths(tokens // count, random)
        table = random_rows(lengths_B, vocabulary, random, topics.draw(lengths_B, random))
        written.append(write_table(folder, shard_name("pairs", index, count), table))
        lengths.append(lengths_B)

    manifest = manifest_of(written, np.concatenate(lengths), MAX_LENGTH, vocabulary)
    (folder / NAME).write_bytes(manifest.to_json())


def _lengths(tokens: int, random: np.random.Generator) -> Ints:
    """Return row lengths that add up to about `tokens`. Nine of ten rows are nearly full, as in real pairs."""
    rows = max(1, tokens // 110)
    is_full_B = random.random(rows) < 0.9
    return np.where(is_full_B, random.integers(110, MAX_LENGTH + 1, rows), random.integers(8, 110, rows))


@dataclass
class MemoryWatch:
    """Samples the memory of a process and its descendants from /proc until `stop` is set. Numbers are bytes.

    largest: the highest peak of any single process.
    together: the highest sum over all processes in one sample. Pages that processes share count once for each.
    """

    root: int
    stop: threading.Event = field(default_factory=threading.Event)
    largest: int = 0
    together: int = 0

    def run(self) -> None:
        while not self.stop.wait(SECONDS_BETWEEN_LOOKS):
            statuses = [_memory_of(process) for process in _family(self.root)]
            self.largest = max([self.largest, *(peak for peak, _ in statuses)])
            self.together = max(self.together, sum(now for _, now in statuses))


def _family(root: int) -> list[int]:
    """Return the process ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            children.setdefault(_parent_of(int(entry.name)), []).append(int(entry.name))

    family = [root]
    for process in family:
        family.extend(children.get(process, []))
    return family


def _parent_of(process: int) -> int:
    """Return the id of a process's parent; -1 if the process has ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[1])


def _memory_of(process: int) -> tuple[int, int]:
    """Return the (peak, current) resident bytes of a process; zeros if it has ended."""
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return 0, 0
    if "VmHWM:" not in status:
        return 0, 0
    peak, present = (int(status.partition(name)[2].split()[0]) for name in ("VmHWM:", "VmRSS:"))
    return peak * 1024, present * 1024


def measure(pairs: Path, output: Path, flags: list[str]) -> str:
    """Run `statistics` on a folder of pairs, and return its cells of the table. Raises SystemExit if it fails."""
    command = [sys.executable, "-m", "pipeline", "statistics", "--pairs", str(pairs), "--output", str(output), *flags]
    before = _cpu_of_children()
    started = perf_counter()
    process = subprocess.Popen(command)
    watch = MemoryWatch(process.pid)
    watcher = threading.Thread(target=watch.run)
    watcher.start()
    code = process.wait()
    seconds = perf_counter() - started
    watch.stop.set()
    watcher.join()
    if code != 0:
        raise SystemExit(code)

    cpu = _cpu_of_children() - before
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    kept = json.loads((output / NAME).read_text())["totals"]["cooccurrences"]
    memory = f"{watch.largest / 1e9:.2f} GB | {watch.together / 1e9:.2f} GB"
    return f"{seconds:.0f} s | {cpu:.0f} s | {memory} | {kept / 1e6:.1f} million | {size / 1e6:.0f} MB"


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    flags = argparse.ArgumentParser(description="What `python -m pipeline statistics` costs.")
    flags.add_argument("out", type=Path)
    flags.add_argument("--tokens", type=int, default=250_000_000)
    flags.add_argument("--vocabularies", type=int, nargs="+", default=[30_522, 128_000])
    given, more = flags.parse_known_args()
    command_flags = [flag for flag in more if flag != "--"]

    lines = []
    for size in given.vocabularies:
        pairs = given.out / f"pairs-{size}-{given.tokens}"
        if not (pairs / NAME).exists():
            write_topic_pairs(pairs, given.tokens, size)
        output = given.out / f"statistics-{size}-{given.tokens}-{os.getpid()}"
        lines.append(f"| {size:,} | {measure(pairs, output, command_flags)} |")

    print("| vocabulary | time | CPU | largest process | all processes | kept pairs of tokens | output |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
