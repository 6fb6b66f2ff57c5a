"""`make bench`: compares our code with rivals on the same text, in alternating rounds, by the median of the ratios.

    python benchmarks/run.py [--megabytes 20] [--rounds 5]      # from the root of the repository

Absolute speeds depend on the machine and its other load, so quote the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, DataCollatorForLanguageModeling

from pipeline.pairs.encoding import Encoder
from pipeline.vocab.counted_words import Words
from pipeline.vocab.train import VocabularyOptions, train_wordpiece
from schemas import shards
from schemas.manifest import read_manifest
from schemas.masking import KINDS, Kind, Masking
from schemas.vocabulary import COUNTS_FILE
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream

Timed = Callable[[], object]
BATCHES = 1000  # of 32,768 tokens: several epochs, so that opening and reading shards counts as much as in a run


def seconds(work: Timed) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@dataclass(frozen=True)
class Work:
    """The work of one line of the table: its name, its amount, and the unit of its speed."""

    name: str
    amount: float
    unit: str


def compare(work: Work, ours: Timed, rival: Timed, rounds: int) -> None:
    """Time both in alternation, and print their median speeds and the median ratio."""
    pairs = [(seconds(ours), seconds(rival)) for _ in range(rounds)]
    our_speed, rival_speed = (work.amount / statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(rival_time / our_time for our_time, rival_time in pairs)
    print(f"| {work.name} | {our_speed:,.2g} {work.unit} | {rival_speed:,.2g} {work.unit} | {ratio:.1f}x |", flush=True)


def main() -> None:
    flags = argparse.ArgumentParser(description="Compares our code with other libraries, one core each.")
    flags.add_argument("--megabytes", default="20", help="of text")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--copies", default="10", help="of the text, each document changed a little, for whole commands")
    options = flags.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        make_data(out, options.megabytes)
        print("\n| one core | ours | rival | ratio |\n|---|---|---|---|")
        encoding(out, options.rounds)
        batches(out, options.rounds)
        learning(out)
        subprocess.run([sys.executable, str(Path(__file__).parent / "models.py"), str(out)], check=True)
        print("\n| two cores, whole commands | seconds | MB/s |\n|---|---|---|")
        commands(out, int(options.copies), options.rounds)


def make_data(out: Path, megabytes: str) -> None:
    """Make text, a vocabulary and pairs with the commands that a user would run."""
    for command in (
        f"clozeline.demo.corpus {out}/corpus.jsonl --megabytes {megabytes}",
        f"pipeline shard --input {out}/corpus.jsonl --output {out}/text",
        f"pipeline vocab --text {out}/text --output {out}/vocab --model wordpiece --size 30522",
        f"pipeline pairs --text {out}/text --vocab {out}/vocab --output {out}/pairs --objective nsp",
    ):
        subprocess.run([sys.executable, "-m", *command.split()], check=True)


def encoding(out: Path, rounds: int) -> None:
    """Compare encoding sentences with a new encoder, which caches words, and with the library's fastest batch call."""
    data = (out / "vocab" / "tokenizer.json").read_bytes()
    tokenizer = Tokenizer.from_str(data.decode())
    sentences: list[str] = []
    for shard in read_manifest(str(out / "text"), "text").shards:
        table = shards.decode_table((out / "text" / shard.path).read_bytes(), shard.path, shards.TEXT_SCHEMA)
        sentences += table["sentences"].combine_chunks().flatten().to_pylist()
    column = pa.array(sentences)
    megabytes = sum(len(sentence.encode()) for sentence in sentences) / 1e6

    def ours() -> None:
        Encoder(data, "wordpiece").encode(column)

    def rival() -> None:
        tokenizer.encode_batch_fast(sentences, add_special_tokens=False)

    compare(Work("encoding, against tokenizers' `encode_batch_fast`", megabytes, "MB/s"), ours, rival, rounds)


def batches(out: Path, rounds: int) -> None:
    """Compare making masked batches from rows, ours with reading and packing, with the most widely used collator."""
    folder = PairFolder(str(out / "pairs"))
    collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(str(out / "vocab")))
    rows = folder.block((0,)).rows
    count = min(8192, len(rows.labels_B))
    bounds = zip(rows.offsets_B1[:count], rows.offsets_B1[1 : count + 1], strict=True)
    lists = [{"input_ids": rows.ids_T[a:b].tolist()} for a, b in bounds]
    tokens = int(rows.offsets_B1[count])
    folder.close()

    def ours(kind: Kind) -> None:
        """Make BATCHES batches, including the time to open, check and read the shards."""
        sources = build_sources([PairFolder(str(out / "pairs"))], None, 0, by_tokens=True)
        stream = Stream(sources, RankShare(0, 1, 1, 32_768), MaskingSchedule(Masking(kind)), 0)
        for step in range(BATCHES):
            stream.batch(step)
        stream.close()

    def rival() -> None:
        for start in range(0, count, 64):
            collator(lists[start : start + 64])

    for kind in KINDS:
        ratios = [(BATCHES * 32_768 / seconds(partial(ours, kind)), tokens / seconds(rival)) for _ in range(rounds)]
        mine, theirs = (statistics.median(speeds) / 1e6 for speeds in zip(*ratios, strict=True))
        ratio = statistics.median(a / b for a, b in ratios)
        what = f"masked batches ({kind}), against `DataCollatorForLanguageModeling`"
        print(f"| {what} | {mine:.1f} million tokens/s | {theirs:.1f} million tokens/s | {ratio:.1f}x |", flush=True)


def learning(out: Path, distinct: int = 1_000_000) -> None:
    """Compare training a vocabulary of 30,522 tokens on a million distinct words, which all have a count of 1.

    The library's trainer takes text instead of counts.
    """
    table = shards.decode_table((out / "vocab" / COUNTS_FILE).read_bytes(), COUNTS_FILE, shards.COUNTS_SCHEMA)
    real = [word for word in table["word"].to_pylist() if word.isalpha()]
    draws = np.random.default_rng(0)
    words: dict[str, None] = {}
    while len(words) < distinct:
        words |= {real[i] + real[j]: None for i, j in draws.integers(len(real), size=(distinct, 2)).tolist()}
    different = list(words)[:distinct]
    once = pa.table([pa.array(different), pa.array(np.ones(distinct, np.int64))], schema=shards.COUNTS_SCHEMA)

    def ours() -> None:
        train_wordpiece(lambda: Words.of(once), VocabularyOptions("wordpiece", 30_522, 2))

    def rival() -> None:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordPieceTrainer(vocab_size=30_522, min_frequency=2, show_progress=False)
        tokenizer.train_from_iterator((" ".join(different[i : i + 1000]) for i in range(0, distinct, 1000)), trainer)

    work = Work("learning from a million words, against `WordPieceTrainer`", distinct / 1e6, "million words/s")
    compare(work, ours, rival, rounds=1)


def commands(out: Path, copies: int, rounds: int) -> None:
    """Time `shard`, `vocab` and `pairs` on a larger text, in alternation with libraries that do part of their work."""
    parts, megabytes = repeat_text(out, copies)
    job, rival = "-m pipeline", "benchmarks/rivals.py"
    text, vocab, corpus = out / "big_text", out / "big_vocab", out / "big.jsonl"
    timed = {
        "`shard`": f"{job} shard --input {parts}/* --output {text} --overwrite",
        "`vocab`": f"{job} vocab --text {text} --output {vocab} --model wordpiece --size 30522 --overwrite",
        "`pairs`": f"{job} pairs --text {text} --vocab {vocab} --output {out}/big_pairs --objective nsp --overwrite",
        "tokenizers' `encode_batch_fast`, 2 threads": f"{rival} encode_batch_fast {corpus} {out}/vocab/tokenizer.json",
        "tokenizers' `train_from_iterator`, 2 threads": f"{rival} train_from_iterator {corpus} 30522",
        "datatrove, documents read and written unchanged": f"{rival} datatrove {parts} {out}/datatrove",
    }
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "2"}
    took: dict[str, list[float]] = {what: [] for what in timed}
    for _ in range(rounds):
        shutil.rmtree(out / "datatrove", ignore_errors=True)  # it would skip finished work
        for what, command in timed.items():
            words = [sys.executable, *command.split()]
            done = partial(subprocess.run, words, env=environment, check=True, capture_output=True)
            took[what].append(seconds(done))
    for what, times in took.items():
        middle = statistics.median(times)
        print(f"| {what} | {middle:.1f} | {megabytes / middle:.1f} |", flush=True)


def repeat_text(out: Path, copies: int) -> tuple[Path, float]:
    """Write the corpus `copies` times with a different first sentence each time, in four files and in one.

    Returns the folder of the four files, and their megabytes.
    """
    documents = [json.loads(line) for line in (out / "corpus.jsonl").read_text().splitlines()]
    lines = [
        json.dumps({"text": f"Copy {i}. {document['text']}", "source": document["source"]}) + "\n"
        for i in range(copies)
        for document in documents
    ]
    parts = out / "parts"
    parts.mkdir()
    for i in range(4):
        (parts / f"{i}.jsonl").write_text("".join(lines[i::4]))
    (out / "big.jsonl").write_text("".join(lines))
    return parts, sum(map(len, lines)) / 1e6


if __name__ == "__main__":
    main()
