"""Compares our recipes with transformers' run_mlm for equal CPU minutes on one core, with the same text and vocabulary.

    python benchmarks/quality.py CORPUS.jsonl [...] --output OUT [--minutes 2 10] [--only NAME ...]
    python benchmarks/quality.py --text TEXT TEXT_HELDOUT --output OUT ...

CORPUS.jsonl has a document in the key "text" of each line; every fiftieth is held out, whether or not it resembles
another one. --text takes two text folders, as package_corpus.py makes them. All contestants train on rows of up to 128
tokens with one WordPiece vocabulary (8,000 tokens, lowercase), one after another, each in its own process with one
thread. A run takes as many steps as fit into the CPU minutes. Start-up, the counting of co-occurrences, the word
vectors and the checkpoints are not counted.

    run_mlm, defaults   transformers' BertForMaskedLM, 2 layers of 128, and collator with run_mlm.py's values
    run_mlm, LR, ROWS   the same, tuned: this learning rate and batch, no dropout, larger initial weights, and warmup
    run_mlm bert 4x256, LR, ROWS; run_mlm modernbert 6x384, LR, ROWS     with another model and shape
    tiny as it was      the recipe that shipped earlier as `tiny` (small_bert.toml)
    NAME                one of our recipes. NAME+KEY=VALUE changes a key; +4x256 and +6x384 change the shape, and
                        +drawn_embeddings, +drawn_attention and others leave out one part of the initial weights;
                        +averaged scores the mean weights of checkpoints from the last quarter of the steps
    NAME untrained      the weights that it starts from; `NAME random`: the same without model.initial_*

Steps are timed first, which other work on the machine disturbs: with --time_only in a quiet hour, once for all.
Afterwards they count, whatever else runs. Scores come from quality_measure.py: nats at [MASK], at the same positions
for all. Finished runs are kept, so two commands with different names in --only can share a machine, and ours continue
where they were interrupted. Writes OUT/curves.svg, and prints the table. Evaluations for the curves are not counted,
but take as long as some minutes of training; --no_curves leaves them out. With --device cuda, minutes are wall-clock
time on the GPU.

The weights are in OUT/NAME_MINUTES_SEED/hf. `clozeline suite A=OUT/.../hf B=OUT/.../hf --suite OUT/suite.toml`
fine-tunes them on the tasks of nltk_corpus.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from drawing import write_svg
from quality_measure import HeldOut, read_held_out
from quality_ours import (
    HERE,
    NEVER,
    PARTS,
    SMALL_BERT,
    Settings,
    export_untrained,
    make,
    one_thread,
    time_steps,
    train_ours,
)
from transformers import AutoModelForMaskedLM

from schemas import storage
from schemas.charts import COLORS, Line, chart, short
from schemas.statistics import read_statistics

VOCABULARY_SIZE = 8000
HELD_OUT_EVERY = 50

CONTESTANTS = ["run_mlm, defaults", "run_mlm, 1e-3, 8", SMALL_BERT]
"""The baselines for the shipped recipe. docs/measurements.md has the learning rates and batches that were tried."""

Key = tuple[str, float, int]
"""A run: the name of the contestant, the minutes, and the seed."""


@dataclass(frozen=True)
class Contestant:
    """One of our recipes, as a name such as "cpu_hour+4x256+optimizer.lr=1e-3" or "tiny untrained" gives it.

    start: "untrained" or "random" for the weights before training, "" for a training.
    """

    recipe: str
    start: str
    settings: Settings


Outcome = dict[str, Any]
"""What outcome.json says of a run: steps, tokens, seconds (CPU seconds of training only), curve (seconds and held-out
losses at [MASK])."""


def main() -> None:
    flags = argparse.ArgumentParser(description="Trains small masked LMs for equal times, beside transformers.")
    flags.add_argument("corpora", nargs="*")
    flags.add_argument("--text", type=Path, nargs=2, metavar=("TEXT", "HELD_OUT"), help="in place of the corpora")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--minutes", type=float, nargs="+", default=[2.0, 10.0])
    flags.add_argument("--only", nargs="+", help="names of contestants; all if left out")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--time_only", action="store_true", help="time the steps of all contestants, and train nothing")
    flags.add_argument("--no_curves", action="store_true", help="do not evaluate our recipes while they train")
    options = flags.parse_args()
    for name in options.only or []:
        if not name.startswith("run_mlm"):
            contestant_of(name)

    out = options.output
    out.mkdir(parents=True, exist_ok=True)
    if options.text:
        link_text(options.text, out)
    else:
        split_corpora(options.corpora, out)
    make_data(out)
    held_out = read_held_out(out / "held_out_pairs")
    counts = read_statistics(str(out / "statistics")).unigrams_V
    unigram_loss = held_out.unigram_loss(counts)
    bits = held_out.bits_per_character(unigram_loss)
    print(f"word frequencies alone: {unigram_loss:.3f} nats, {bits:.3f} bits a character")

    outcomes: dict[Key, Outcome] = {}
    for minutes in options.minutes:
        for seed in options.seeds:
            for name in options.only or [*CONTESTANTS, "cpu_minutes" if minutes <= 20 else "cpu_hour"]:
                key = (name, minutes, seed)
                if options.time_only:
                    train(key, folder_of(key, out), options)
                    continue
                outcomes[key] = run(key, options)
                print_line(key, outcomes[key], folder_of(key, out) / "hf", held_out)

    draw(outcomes, unigram_loss, out / "curves.svg")


def link_text(folders: list[Path], out: Path) -> None:
    """Make OUT/text and OUT/held_out_text links to these folders."""
    for name, folder in zip(("text", "held_out_text"), folders, strict=True):
        if not (out / name).exists():
            (out / name).symlink_to(folder.resolve())


def split_corpora(corpora: list[str], out: Path) -> None:
    """Make OUT/text and OUT/held_out_text. Ends the program if OUT was made from other documents."""
    documents = documents_of(corpora)
    held_out = documents[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [document for i, document in enumerate(documents) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]

    # Written only once, because another command that shares OUT may be reading them.
    if not (out / "training.jsonl").exists():
        for name, lines in (("held_out", held_out), ("training", training)):
            storage.publish(str(out / f"{name}.jsonl"), "".join(f"{line}\n" for line in lines).encode())
    elif documents_of([str(out / "training.jsonl")]) != training:
        sys.exit(f"{out} was made from other documents than {', '.join(corpora)}. Choose another --output.")

    for name, text in (("training", out / "text"), ("held_out", out / "held_out_text")):
        make(text, f"python -m pipeline shard --input {out / name}.jsonl --output {text}")


def documents_of(files: list[str]) -> list[str]:
    """Return the documents of JSONL files, each as one line of JSON."""
    return [line for file in files for line in Path(file).read_text().splitlines()]


def make_data(out: Path) -> None:
    """Make OUT/pairs, OUT/held_out_pairs and OUT/statistics, with the vocabulary of the training text."""
    vocab = out / "vocab"
    kind = f"--model wordpiece --size {VOCABULARY_SIZE} --lowercase"
    make(vocab, f"python -m pipeline vocab --text {out / 'text'} --output {vocab} {kind}")
    for text, pairs in (("text", "pairs"), ("held_out_text", "held_out_pairs")):
        rows = "--objective full_sentences --max_length 128"
        command = f"python -m pipeline pairs --text {out / text} --vocab {vocab} --output {out / pairs} {rows}"
        make(out / pairs, command)
    statistics = out / "statistics"
    make(statistics, f"python -m pipeline statistics --pairs {out / 'pairs'} --output {statistics}")


# ---- Runs ----


def run(key: Key, options: argparse.Namespace) -> Outcome:
    """Train one contestant unless its run is finished, and return its outcome."""
    folder = folder_of(key, options.output)
    if not (folder / "outcome.json").exists():
        outcome = train(key, folder, options)
        storage.publish(str(folder / "outcome.json"), json.dumps(outcome).encode())
    return json.loads((folder / "outcome.json").read_text())


def folder_of(key: Key, out: Path) -> Path:
    """Return the folder of a run."""
    name, minutes, seed = key
    return out / "_".join(f"{name} {minutes:g} {seed}".replace("/", "-").replace(",", "").split())


def train(key: Key, folder: Path, options: argparse.Namespace) -> Outcome:
    """Train the contestant of a name, and return its outcome. With --time_only, it is empty."""
    name, minutes, seed = key
    if name.startswith("run_mlm"):
        return train_rival(key, folder, options)

    contestant = contestant_of(name)
    settings: Settings = {
        "data.pairs": options.output / "pairs",
        "evaluation.pairs": options.output / "held_out_pairs",
        "run.seed": seed,
    }
    if options.no_curves:
        settings |= {"evaluation.pairs": "none", "evaluation.every": NEVER}
    if contestant.recipe != SMALL_BERT:
        settings["data.statistics"] = options.output / "statistics"
    settings |= contestant.settings

    if contestant.start:
        export_untrained(contestant.recipe, folder, settings, options.device)
        return {"steps": 0, "tokens": 0, "seconds": 0.0, "curve": []}
    if options.time_only:
        time_steps(contestant.recipe, folder, settings, options.device)
        return {}
    return train_ours(contestant.recipe, minutes * 60, folder, settings, options.device)


def contestant_of(name: str) -> Contestant:
    """Return what a name stands for (see the top of this file). Ends the program if it stands for nothing."""
    recipe, *parts = name.split("+")
    start = ""
    if recipe != SMALL_BERT:
        recipe, _, start = recipe.partition(" ")
    if start not in ("", "untrained", "random"):
        sys.exit(f'{name}: "{start}" is not "untrained" or "random".')

    settings: Settings = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if part in PARTS:
            settings |= PARTS[part]
        elif equals:
            settings[key] = value
        else:
            sys.exit(f'{name}: "{part}" is not KEY=VALUE, nor one of {", ".join(PARTS)}.')

    if start == "random":
        settings |= PARTS["drawn"]
    return Contestant(recipe, start, settings)


def train_rival(key: Key, folder: Path, options: argparse.Namespace) -> Outcome:
    """Train transformers' model with quality_rival.py, and return its outcome."""
    name, minutes, seed = key
    words = [sys.executable, str(HERE / "quality_rival.py"), str(options.output / "pairs")]
    words += [str(options.output / "held_out_pairs"), "--output", str(folder / "hf"), "--seconds", str(minutes * 60)]
    words += ["--seed", str(seed), "--device", options.device]
    rival, *tuned = name.split(", ")
    if rival != "run_mlm":
        _, model, shape = rival.split(" ")
        words += ["--model", model, "--shape", shape]
    if tuned != ["defaults"]:
        rate, rows = tuned
        words += ["--tuned", "--lr", rate, "--batch", rows]
    words += ["--time_only"] if options.time_only else []
    subprocess.run(words, check=True, env=one_thread(options.device))
    if options.time_only:
        return {}
    return json.loads((folder / "hf" / "curve.json").read_text())


def print_line(key: Key, outcome: Outcome, hf: Path, held_out: HeldOut) -> None:
    """Print one line of the table: steps, millions of tokens, nats, bits per character, accuracy."""
    name, minutes, seed = key
    score = held_out.score(AutoModelForMaskedLM.from_pretrained(hf))
    bits = held_out.bits_per_character(score.loss)
    trained = f"{outcome['steps']:,} | {outcome['tokens'] / 1e6:.2f}"
    scores = f"{score.loss:.3f} | {bits:.3f} | {score.accuracy:.3f}"
    print(f"| {name} | {minutes:g} | {seed} | {trained} | {scores} |", flush=True)


def draw(outcomes: dict[Key, Outcome], unigram_loss: float, path: Path) -> None:
    """Draw the held-out loss of all trained runs over minutes, and that of word frequencies."""
    curves = [(key[0], outcome["curve"]) for key, outcome in outcomes.items() if outcome["curve"]]
    if not curves:
        return

    names = list(dict.fromkeys(name for name, _ in curves))
    color = dict(zip(names, cycle(COLORS), strict=False))
    lines = [Line(name, color[name], [(seconds / 60, loss) for seconds, loss in curve]) for name, curve in curves]
    last = max(minutes for line in lines for minutes, _ in line.points)
    lines.append(Line("word frequencies alone", "gray", [(0, unigram_loss), (last, unigram_loss)]))
    drawn = chart("Held-out loss at [MASK], nats", lines, last, [], short)
    write_svg(replace(drawn, unit="minute"), path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
