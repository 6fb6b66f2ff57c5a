"""Measures the peak memory of each step of the pipeline on a generated corpus of any size.

    python benchmarks/scale.py corpus FOLDER --megabytes 300        write a corpus of made-up words
    python benchmarks/scale.py memory FOLDER OUT [--dedup minhash]  run the jobs on it; print peak memory by step

Words follow Zipf's law, and the number of distinct words grows with the corpus by Heaps' law, so that the memory of
`vocab` is realistic. One document in five is a near-duplicate of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.cli import main as main_of_pipeline
from pipeline.transforms import calls

DOCUMENT_WORDS = 500  # on average: 3 KB
SENTENCE_WORDS = 18
FILE_MEGABYTES = 50
NEAR_DUPLICATES = 0.2


def distinct_words(megabytes: int) -> int:
    """Return the number of distinct words in a corpus, by Heaps' law from 1.2 million in 236 MB of web text."""
    return int(1.2e6 * (megabytes / 236) ** 0.6)


def made_up_words(count: int) -> np.ndarray:
    """Return an array of `count` distinct words of lowercase letters, shorter ones first."""
    draws = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlcumwfgypbvk"))
    words: dict[str, None] = {}
    while len(words) < count:
        length = 2 + int(np.log2(1 + len(words) / 50))
        lot = draws.choice(letters, size=(4096, length))
        words |= dict.fromkeys("".join(row) for row in lot)
    return np.array(list(words)[:count], dtype=object)


def documents(megabytes: int) -> Iterator[str]:
    """Yield documents until they add up to `megabytes`."""
    draws = np.random.default_rng(2)
    words = made_up_words(distinct_words(megabytes))
    left = megabytes * 1_000_000
    previous = ["nothing"]

    while left > 0:
        if draws.random() < NEAR_DUPLICATES:
            chosen = previous.copy()
            chosen[int(draws.integers(len(chosen)))] = "changed"
        else:
            count = 1 + int(draws.exponential(DOCUMENT_WORDS))
            # Ranks that are uniform on a logarithmic scale follow Zipf's law with exponent 1.
            ranks = np.exp(draws.random(count) * np.log(len(words))).astype(np.int64) - 1
            chosen = words[ranks].tolist()
            previous = chosen

        text = _sentences(chosen)
        left -= len(text)
        yield text


def _sentences(words: list[str]) -> str:
    sentences = []
    for start in range(0, len(words), SENTENCE_WORDS):
        sentence = " ".join(words[start : start + SENTENCE_WORDS])
        sentences.append(sentence.capitalize() + ".")
    return " ".join(sentences)


def write_corpus(folder: Path, megabytes: int) -> None:
    """Write the corpus as JSON lines files of about FILE_MEGABYTES each."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = documents(megabytes)
    for number in range(-(-megabytes // FILE_MEGABYTES)):
        with open(folder / f"{number:05d}.jsonl", "w") as file:
            written = 0
            while written < FILE_MEGABYTES * 1_000_000:
                text = next(texts, None)
                if text is None:
                    return
                written += file.write(json.dumps({"text": text}) + "\n")


def run_jobs(corpus: Path, out: Path, more: list[str]) -> None:
    """Run `shard`, `vocab` and `pairs`, and print the peak memory of each step. more: further flags of `shard`."""
    log = out / "memory.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    calls._guarded = partial(_measured, calls._guarded, str(log))

    text = str(out / "text")
    vocab = str(out / "vocab")
    jobs = {
        "shard": ["shard", "--input", f"{corpus}/*.jsonl", "--output", text, *more],
        "vocab": ["vocab", "--text", text, "--output", vocab, "--model", "wordpiece", "--size", "30522"],
        "pairs": [
            *["pairs", "--text", text, "--vocab", vocab, "--output", str(out / "pairs")],
            *["--objective", "nsp", "--max_length", "512"],
        ],
    }
    for name, arguments in jobs.items():
        started = time.perf_counter()
        code = main_of_pipeline([*arguments, "--overwrite"])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(f"{name}: exit code {code}, {time.perf_counter() - started:.0f} s, launcher {peak:.2f} GB", flush=True)
        if code != 0:
            raise SystemExit(code)

    print("| step | calls | longest, s | CPU of all, s | peak memory, GB |\n|---|---|---|---|---|")
    steps: dict[str, list[dict]] = {}
    for line in log.read_text().splitlines():
        measured = json.loads(line)
        steps.setdefault(measured["step"], []).append(measured)
    for step, measured in steps.items():
        longest = max(call["seconds"] for call in measured)
        seconds = sum(call["cpu"] for call in measured)
        peak = max(call["peak"] for call in measured) / 1e6
        print(f"| {step} | {len(measured)} | {longest:.1f} | {seconds:.1f} | {peak:.2f} |")


def _measured(guarded: Callable, log: str, function: Callable, *more: object, **named: object) -> Callable:
    """Wrap a step as `calls` does, and make the worker log its peak memory.

    The wrapper is sent to workers by value, so it imports modules itself.
    """
    step = _name_of(function)

    def measured(*arguments):
        import json
        import time
        from pathlib import Path

        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current use
        started = time.perf_counter()
        cpu_started = time.process_time()
        yield from function(*arguments)

        status = Path("/proc/self/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0])
        with open(log, "a") as file:
            line = {
                "step": step,
                "peak": peak,
                "seconds": time.perf_counter() - started,
                "cpu": time.process_time() - cpu_started,
            }
            file.write(json.dumps(line) + "\n")

    return guarded(measured, *more, **named)


def _name_of(function: Callable) -> str:
    """Return the name of the pipeline's function inside a step's wrappers."""
    while True:
        inner = getattr(function, "func", None)  # of a partial
        for cell in getattr(function, "__closure__", None) or ():
            if callable(cell.cell_contents):
                inner = cell.cell_contents
        if inner is None:
            return function.__name__
        function = inner


def main() -> None:
    flags = argparse.ArgumentParser(description="Peak memory of each step of the pipeline.")
    commands = flags.add_subparsers(required=True, dest="command")
    corpus = commands.add_parser("corpus")
    corpus.add_argument("folder", type=Path)
    corpus.add_argument("--megabytes", type=int, default=300)
    memory = commands.add_parser("memory")
    memory.add_argument("folder", type=Path)
    memory.add_argument("out", type=Path)
    parsed, more = flags.parse_known_args()
    if parsed.command == "corpus":
        write_corpus(parsed.folder, parsed.megabytes)
    else:
        run_jobs(parsed.folder, parsed.out, more)


if __name__ == "__main__":
    main()
