"""Measures what the loader costs one rank of a large run, and how much the ranks of a node read in total.

    python benchmarks/loader.py [--folder FOLDER] [--world 512] [--ranks 8] [--steps 8]

Generates a corpus in FOLDER unless it holds one already: shards of 16,000 rows, as many as 8 MB of text gives, with
word frequencies as in English, so that a token takes about 1.5 bytes on disk. Every rank takes 256 rows of up to 128
tokens per step, which take BERT-base 0.04 s on an H100.

Times are CPU seconds, which other work on the machine disturbs least. The ranks of a node are real processes, and take
each step at the same time, as the all-reduce of gradients would make them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from loader_corpus import make_corpus, repeat_shards

from schemas.masking import Masking
from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder, open_folders
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream, build_stream

ROWS_PER_RANK = 256


def recipe_of(folder: Path, world: int) -> Recipe:
    """Return BERT-base's recipe for a run of `world` ranks on the corpus."""
    changes = [f"data.pairs={folder}", f"run.output={folder}/run", "run.max_steps=100000", "run.stop_at=none"]
    batch = [f"batch.global_batch={world * ROWS_PER_RANK}", f"batch.micro_batch={ROWS_PER_RANK}"]
    return load_recipe("trainer/recipes/bert_base.toml", [*changes, *batch])


def decoding(folder: Path) -> None:
    """Print the cost of reading, checking and converting a block of shards again, as in a later epoch."""
    pairs = PairFolder(str(folder))
    numbers = tuple(range(8))
    tokens = sum(shard.tokens for shard in pairs.manifest.shards[:8])
    pairs.decode_block(numbers)
    times = []
    for _ in range(3):
        started = time.process_time()
        pairs.decode_block(numbers)
        times.append(time.process_time() - started)
    pairs.close()
    print(f"| decoding a block of 8 shards | {1e9 * min(times) / tokens:.1f} ns a token |", flush=True)


def own_work(folder: Path, world: int, steps: int) -> None:
    """Print the cost of a step for one rank when its blocks are in memory, for batches in rows and in tokens."""
    for by_tokens in (False, True):
        pairs = PairFolder(str(folder))
        per_step = world * ROWS_PER_RANK
        if by_tokens:
            per_step = per_step * pairs.manifest.totals["tokens"] // pairs.manifest.totals["rows"]
        sources = build_sources([pairs], None, 0, by_tokens)
        stream = Stream(sources, RankShare(0, world, 1, per_step), MaskingSchedule(Masking("whole_word")), 0)
        with closing(stream):
            seconds, tokens = timed_steps(stream, steps)
        unit = "tokens" if by_tokens else "rows"
        share = f"{1e3 * seconds / steps:.2f} ms a step, {tokens / steps:,.0f} tokens of its own"
        print(f"| one rank of {world}, batches in {unit}, blocks in memory | {share} |", flush=True)


def timed_steps(stream: Stream, steps: int) -> tuple[float, int]:
    """Return this thread's CPU seconds and the rank's own tokens over some steps, without reading blocks."""
    seconds = 0.0
    tokens = 0
    for step in range(steps):
        bounds = stream.bounds_of(step)
        stream.micro_batches_at(bounds, step)  # reads the blocks, so that the second call is timed without that
        started = time.thread_time()
        batches = stream.micro_batches_at(bounds, step)
        seconds += time.thread_time() - started
        tokens += sum(batch.tokens for batch in batches)
    return seconds, tokens


def rank_process(folder: Path, world: int) -> None:
    """Act as one rank: take a step for each line on stdin, and after "end" print the resources used as JSON."""
    recipe = recipe_of(folder, world)
    folders = open_folders(recipe)
    stream = build_stream(recipe, folders, RankShare(int(os.environ["LOCAL_RANK"]), world, 1, recipe.batch.size))
    begun = usage()
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "end\n":
            break
        stream.batch(int(line))
        print("done", flush=True)
    used = {name: value - begun[name] for name, value in usage().items()}
    used["peak"] = peak_memory()
    stream.close()
    print(json.dumps(used), flush=True)


def usage() -> dict[str, float]:
    """Return the CPU seconds of this process so far, and the bytes it has read from disk or from the page cache."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return {"seconds": time.process_time(), "bytes": float(fields["rchar"])}


def peak_memory() -> float:
    """Return the bytes of anonymous memory of this process now, which excludes memory that it shares with others."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * int(fields["RssAnon"].split()[0])


def node(folder: Path, world: int, ranks: int, steps: int) -> None:
    """Print the total resources that the ranks of one node use over some steps."""
    command = [sys.executable, __file__, "--folder", str(folder), "--world", str(world), "--be_a_rank"]
    environment = os.environ | {"LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(ranks):
        own = environment | {"LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world)}
        processes.append(subprocess.Popen(command, env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"

    shared_most = 0
    for order in [*map(str, range(steps)), "end"]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{order}\n")
            process.stdin.flush()
        replies = [process.stdout.readline() for process in processes if process.stdout is not None]
        shared_most = max(shared_most, used_shared_memory())
    for process in processes:
        process.wait()

    used = [json.loads(reply) for reply in replies]
    totals = {name: sum(one[name] for one in used) for name in used[0]}
    corpus = PairFolder(str(folder))
    tokens = steps * world * ROWS_PER_RANK * corpus.manifest.totals["tokens"] / corpus.manifest.totals["rows"]
    stored = tokens * sum(shard.bytes for shard in corpus.manifest.shards) / corpus.manifest.totals["tokens"]
    corpus.close()
    print(f"| {ranks} ranks of {world}, {steps} steps of {tokens / steps / 1e6:.1f} million tokens | |")
    print(f"| ... CPU seconds, all ranks | {totals['seconds']:.1f} |")
    print(f"| ... tokens/s/core of one rank | {tokens * ranks / totals['seconds'] / 1e6:.1f} million |")
    print(f"| ... bytes read, in bytes of these steps' rows | {totals['bytes'] / stored:.2f} |")
    memory = f"{totals['peak'] / 1e9:.2f} GB, {shared_most / 1e9:.2f} GB"
    print(f"| ... the ranks' own memory, and shared memory in use | {memory} |", flush=True)


def many_shards(folder: Path, count: int) -> None:
    """Print the cost of opening a corpus of `count` shards and of starting anywhere in it, in a separate process."""
    many = folder.parent / f"{folder.name}-{count}"
    if not (many / "manifest.json").exists():
        repeat_shards(folder, many, count)
    command = [sys.executable, __file__, "--folder", str(many), "--be_many"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"| {count:,} shards: opening them, CPU seconds | {found['open']:.2f} |")
    print(f"| ... the first batch of 8,192 rows | {found['first']:.2f} |")
    print(f"| ... a batch far away, as in a resume | {found['resume']:.2f} |")
    print(f"| ... memory above that of the imports | {found['memory'] / 1e6:.0f} MB |")


def be_many(folder: Path) -> None:
    """Open a folder, take its first batch and a distant one, and print the CPU seconds of each and the memory."""
    before = peak_memory()
    marks = [time.process_time()]
    recipe = recipe_of(folder, 32)
    folders = open_folders(recipe)
    stream = build_stream(recipe, folders, RankShare(0, 32, 1, recipe.batch.size))
    marks.append(time.process_time())
    for step in (0, 100_000):
        bounds = stream.bounds_of(step)
        stream.micro_batches_at(bounds, step)
        marks.append(time.process_time())
    seconds = dict(zip(("open", "first", "resume"), np.diff(marks).tolist(), strict=True))
    print(json.dumps(seconds | {"memory": peak_memory() - before}))
    stream.close()


def used_shared_memory() -> int:
    """Return the bytes in /dev/shm that runs of this user share."""
    folders = Path("/dev/shm").glob(f"clozeline-shards-{os.getuid()}-*")
    return sum(path.stat().st_size for folder in folders for path in folder.glob("*.shard"))


def main() -> None:
    flags = argparse.ArgumentParser(description="What the loader costs one rank of a large run.")
    flags.add_argument("--folder", type=Path)
    flags.add_argument("--world", type=int, default=512)
    flags.add_argument("--ranks", type=int, default=8)
    flags.add_argument("--steps", type=int, default=8)
    flags.add_argument("--shards", type=int, default=64)
    flags.add_argument("--many", type=int, default=100_000, help="how many shards the large corpus has")
    flags.add_argument("--be_a_rank", action="store_true", help=argparse.SUPPRESS)
    flags.add_argument("--be_many", action="store_true", help=argparse.SUPPRESS)
    options = flags.parse_args()

    with tempfile.TemporaryDirectory() as own:
        folder: Path = options.folder or Path(own) / "pairs"
        if options.be_a_rank:
            rank_process(folder, options.world)
            return
        if options.be_many:
            be_many(folder)
            return
        if not (folder / "manifest.json").exists():
            make_corpus(folder, options.shards)
        print("| what | figure |\n|---|---|", flush=True)
        decoding(folder)
        own_work(folder, options.world, options.steps)
        node(folder, options.world, options.ranks, options.steps)
        many_shards(folder, options.many)


if __name__ == "__main__":
    main()
