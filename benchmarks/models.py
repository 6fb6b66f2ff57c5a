"""Compares our training step with transformers' on the same rows, masks and threads, alternating in one process.

    python benchmarks/models.py FOLDER [--rounds 4] [--threads 2]

FOLDER holds `text`, `vocab` and `pairs`, as run.py makes them; run.py calls this script. transformers' model gets its
rows as its own collator makes them: padded to the longest, with logits over the vocabulary at every token. Both use
AdamW, new weights, no dropout and float32. Speeds count tokens without padding.

Rows of up to 512 tokens have about 250 tokens on average, as Wikipedia's do (MLPerf's mean is 254). --short_seq_prob
gives the documentation that is used here the same mean.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import BertConfig, BertForPreTraining

from schemas.masking import Masking
from trainer.config.sections import ModelSection
from trainer.data.folder import PairFolder
from trainer.data.order import build_sources
from trainer.data.share import RankShare
from trainer.data.stream import MaskingSchedule, Stream
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import build_model

BASE = ModelSection(
    family="bert",
    num_hidden_layers=12,
    hidden_size=768,
    num_attention_heads=12,
    intermediate_size=3072,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
SMALL = BASE.model_copy(
    update={"num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
)
CASES = [
    ("BERT-base, rows to 128", BASE, "pairs", 12),
    ("BERT-base, rows to 512", BASE, "pairs512", 8),
    ("4 layers of 256, rows to 128", SMALL, "pairs", 32),
]
Step = Callable[[PackedBatch], object]


def main() -> None:
    flags = argparse.ArgumentParser(description="Training steps, ours and transformers'.")
    flags.add_argument("folder", type=Path)
    flags.add_argument("--rounds", type=int, default=4)
    flags.add_argument("--threads", type=int, default=2)
    options = flags.parse_args()
    torch.set_num_threads(options.threads)
    job = [sys.executable, "-m", "pipeline", "pairs", "--text", options.folder / "text", "--objective", "nsp"]
    longer = ["--vocab", options.folder / "vocab", "--output", options.folder / "pairs512", "--max_length", "512"]
    longer += ["--short_seq_prob", "0.3"]
    subprocess.run(list(map(str, job + longer)), check=True, capture_output=True)
    print(f"\n| a training step, {options.threads} threads | ours | transformers | ratio |\n|---|---|---|---|")
    for what, section, pairs, rows in CASES:
        compare(what, section, options.folder / pairs, rows, options.rounds)


def compare(what: str, section: ModelSection, pairs: Path, rows: int, rounds: int) -> None:
    folder = PairFolder(str(pairs))
    stream = Stream(
        build_sources([folder], None, 0, by_tokens=False), RankShare(0, 1, 1, rows), MaskingSchedule(Masking()), 0
    )
    ours = our_step(section, folder.vocabulary.size)
    theirs = their_step(section, folder.vocabulary.size)
    speeds = []
    filled = []
    for step in range(rounds + 1):
        batch = stream.batch(step)[0]
        filled.append(batch.tokens / (rows * batch.longest))
        speeds.append((batch.tokens / seconds(ours, batch), batch.tokens / seconds(theirs, batch)))
    stream.close()
    mine, rival = (statistics.median(found) for found in zip(*speeds[1:], strict=True))  # the first step warms up
    ratio = statistics.median(a / b for a, b in speeds[1:])
    what = f"{what}, filled to {statistics.mean(filled):.0%}"
    print(f"| {what} | {mine:,.0f} tokens/s | {rival:,.0f} tokens/s | {ratio:.2f}x |", flush=True)


def seconds(step: Step, batch: PackedBatch) -> float:
    started = time.perf_counter()
    step(batch)
    return time.perf_counter() - started


def adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def our_step(section: ModelSection, vocabulary: int) -> Step:
    model = build_model(section, vocabulary, 0).train()
    optimizer = adamw(model)

    def step(batch: PackedBatch) -> None:
        losses = model(batch)
        (losses.mlm_sum / len(batch.masked_positions_K) + losses.pair_sum / len(batch.sequence_starts_S)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def their_step(section: ModelSection, vocabulary: int) -> Step:
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=section.hidden_size,
        num_hidden_layers=section.num_hidden_layers,
        num_attention_heads=section.num_attention_heads,
        intermediate_size=section.intermediate_size,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForPreTraining(config).train()
    optimizer = adamw(model)

    def step(batch: PackedBatch) -> None:
        model(**padded(batch)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def padded(batch: PackedBatch) -> dict[str, torch.Tensor]:
    """Return the same rows as transformers' arguments: int64 (rows, longest), padded with 0."""
    place = (batch.sequence_T, batch.positions_T)
    ids = torch.zeros(len(batch.sequence_starts_S), batch.longest, dtype=torch.long)
    segments = torch.zeros_like(ids)
    attention = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    ids[place] = batch.ids_T
    segments[place] = batch.segments_T
    attention[place] = 1
    labels[place[0][batch.masked_positions_K], place[1][batch.masked_positions_K]] = batch.labels_K
    return {
        "input_ids": ids,
        "token_type_ids": segments,
        "attention_mask": attention,
        "labels": labels,
        "next_sentence_label": batch.pair_labels_S,
    }


if __name__ == "__main__":
    main()
