"""What some minutes of one core buy: our recipes beside transformers' run_mlm, on the same text and vocabulary.

    python benchmarks/quality.py CORPUS.jsonl [...] --output OUT [--minutes 2 10] [--only NAME ...]

CORPUS.jsonl has a document in the key "text" of each line; every fiftieth is held out. All contestants train on rows of
up to 128 tokens of one WordPiece vocabulary (8,000, lower case), each in a process of its own with one thread, in
turns. A run is as long as fits into the minutes: steps are timed first, by the processor time that they take, so that
what else the machine does changes nothing. Start-up is not counted.

    run_mlm, defaults   transformers' BertForMaskedLM and collator with run_mlm.py's values
    run_mlm, tuned      the same with a tuned rate and batch, no dropout, larger first weights and warm-up
    tiny as it was      the recipe that shipped as `tiny` before (small_bert.toml)
    NAME                the recipe of this time; cpu_minutes up to 20 minutes, then cpu_hour

Scores are those of quality_measure.py: nats at [MASK], at the same places for everyone. A run that is finished is kept.
Writes OUT/curves.svg, and prints the tables. On a GPU: --device cuda, where the minutes are those of the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics as means
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import small_runs
import torch
from quality_measure import HeldOut, Score, fitted_accuracy, read_held_out, sentence_vectors, word_vectors
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from schemas.statistics import read_statistics

HERE = Path(__file__).parent
VOCABULARY_SIZE = 8000
HELD_OUT_EVERY = 50
TIMED_STEPS = (20, 80)
WARMUP_SHARE = 0.07
EVALUATIONS = 12
PROBE_SEEDS = 5
PROBE_EXAMPLES = 4000


@dataclass(frozen=True)
class Outcome:
    """One run. seconds: of the processor, in training alone. curve: (seconds, held-out loss at [MASK])."""

    steps: int
    tokens: int
    seconds: float
    curve: list[tuple[float, float]]
    hf: Path


def main() -> None:
    flags = argparse.ArgumentParser(description="Trains small masked LMs for equal times, beside transformers.")
    flags.add_argument("corpora", nargs="+")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--minutes", type=float, nargs="+", default=[2.0, 10.0])
    flags.add_argument("--only", nargs="+", help="names of contestants; all if left out")
    flags.add_argument("--rival_lr", type=float, default=1e-3)
    flags.add_argument("--rival_batch", type=int, default=32)
    flags.add_argument("--seeds", type=int, default=1)
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--sentences", type=Path, help="JSONL of text and label, for the probe of sentences")
    flags.add_argument("--tags", type=Path, help="JSONL of tokens and tags, for the probe of words")
    options = flags.parse_args()

    out = options.output
    make_data(options.corpora, out)
    held_out = read_held_out(out / "held_out_pairs")
    counts = read_statistics(str(out / "statistics")).unigrams_V
    plateau = held_out.unigram_loss(counts)
    print(f"word frequencies alone: {plateau:.3f} nats, {held_out.bits_per_character(plateau):.3f} bits a character")

    outcomes: dict[tuple[str, float, int], Outcome] = {}
    for minutes in options.minutes:
        for seed in range(options.seeds):
            for name in options.only or contestants(minutes):
                outcomes[name, minutes, seed] = run(name, minutes, seed, options)
                print_line(name, minutes, seed, outcomes[name, minutes, seed], held_out)

    draw(outcomes, plateau, out / "curves.svg")
    if options.sentences or options.tags:
        print_probes(outcomes, options)


def contestants(minutes: float) -> list[str]:
    """Return who takes part for so many minutes."""
    return ["run_mlm, defaults", "run_mlm, tuned", "tiny as it was", "cpu_minutes" if minutes <= 20 else "cpu_hour"]


def make_data(corpora: list[str], out: Path) -> None:
    """Make OUT/pairs, OUT/held_out_pairs and OUT/statistics, with the vocabulary of the training text."""
    documents = small_runs.documents_of(corpora)
    held_out = documents[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [document for i, document in enumerate(documents) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]

    small_runs.make_text(small_runs.write_documents(training, out / "training.jsonl"), out / "text")
    small_runs.make_text(small_runs.write_documents(held_out, out / "held_out.jsonl"), out / "held_out_text")
    small_runs.make_vocabulary(out / "text", out / "vocab", VOCABULARY_SIZE)
    for text, pairs in (("text", "pairs"), ("held_out_text", "held_out_pairs")):
        rows = "--objective full_sentences --max_length 128"
        command = f"python -m pipeline pairs --text {out / text} --vocab {out / 'vocab'} --output {out / pairs} {rows}"
        small_runs.make(out / pairs, command)
    statistics = out / "statistics"
    small_runs.make(statistics, f"python -m pipeline statistics --pairs {out / 'pairs'} --output {statistics}")


# ---- Runs ----


def run(name: str, minutes: float, seed: int, options: argparse.Namespace) -> Outcome:
    """Train one contestant, unless that is done."""
    folder = options.output / f"{name.replace(', ', '_').replace(' ', '_')}_{minutes:g}_{seed}"
    if not (folder / "outcome.json").exists():
        train = train_rival if name.startswith("run_mlm") else train_ours
        outcome = train(name, minutes * 60, seed, folder, options)
        (folder / "outcome.json").write_text(json.dumps(outcome))
    return Outcome(**json.loads((folder / "outcome.json").read_text()), hf=folder / "hf")


def train_rival(name: str, seconds: float, seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    tuned = ["--tuned", "--lr", str(options.rival_lr), "--batch", str(options.rival_batch)]
    words = [sys.executable, str(HERE / "quality_rival.py"), str(options.output / "pairs")]
    words += [str(options.output / "held_out_pairs"), "--output", str(folder / "hf"), "--seconds", str(seconds)]
    words += ["--seed", str(seed), "--device", options.device, *(tuned if name.endswith("tuned") else [])]
    subprocess.run(words, check=True, env=one_thread(options.device))
    return json.loads((folder / "hf" / "curve.json").read_text())


def train_ours(name: str, seconds: float, seed: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Time some steps, then train as many as fit, with a dozen evaluations whose time does not count.

    A run that an interrupted benchmark left is started again: it may have another number of steps.
    """
    seconds_a_step = timed_step(name, seed, folder, options)
    steps = int(seconds / seconds_a_step)

    shutil.rmtree(folder / "run", ignore_errors=True)
    trained_for(steps, name, seed, folder / "run", options, evaluate_every=max(1, steps // EVALUATIONS))
    small_runs.export(folder / "run", folder / "hf")
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if "eval_mlm_loss_masked" in line]
    curve = [(line["step"] * seconds_a_step, line["eval_mlm_loss_masked"]) for line in evaluated]
    return {"steps": steps, "tokens": lines[-1]["tokens"], "seconds": steps * seconds_a_step, "curve": curve}


def timed_step(name: str, seed: int, folder: Path, options: argparse.Namespace) -> float:
    """Return the seconds of one step: the difference of a long and a short run, so that the start does not count."""
    seconds = []
    for steps in TIMED_STEPS:
        run = folder / f"timed_{steps}"
        # A run that an interrupted benchmark left would resume, and take no time.
        shutil.rmtree(run, ignore_errors=True)
        seconds.append(trained_for(steps, name, seed, run, options))

    short, long = seconds
    return (long - short) / (TIMED_STEPS[1] - TIMED_STEPS[0])


def trained_for(
    steps: int, name: str, seed: int, run: Path, options: argparse.Namespace, evaluate_every: int = 10**9
) -> float:
    """Train a recipe for so many steps, and return the seconds of the processor (on a GPU, of the clock)."""
    recipe = str(HERE / "small_bert.toml") if name == "tiny as it was" else name
    settings = {
        "data.pairs": options.output / "pairs",
        "run.output": run,
        "run.max_steps": steps,
        "run.seed": seed,
        "run.log_every": max(1, steps // 200),
        "checkpoint.every": 10**9,
        "checkpoint.keep": 1,
        "evaluation.pairs": options.output / "held_out_pairs" if evaluate_every < 10**9 else "none",
        "evaluation.every": evaluate_every,
    }
    if name == "tiny as it was":
        settings["schedule.warmup_steps"] = max(1, int(WARMUP_SHARE * steps))
    else:
        settings |= {"data.statistics": options.output / "statistics", "run.max_hours": "none"}

    words = [sys.executable, "-m", "trainer", "--config", recipe]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, env=one_thread(options.device), stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if options.device != "cpu":
        return float(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["seconds"])
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def one_thread(device: str) -> dict[str, str]:
    """Return the environment of a contestant."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return environment | {"DS_ACCELERATOR": "cpu"} if device == "cpu" else environment


# ---- Tables and curves ----


def score_of(hf: Path, held_out: HeldOut) -> Score:
    """Return the score of an exported model, opened as a user opens it."""
    return held_out.score(AutoModelForMaskedLM.from_pretrained(hf))


def print_line(name: str, minutes: float, seed: int, outcome: Outcome, held_out: HeldOut) -> None:
    score = score_of(outcome.hf, held_out)
    bits = held_out.bits_per_character(score.loss)
    figures = f"{outcome.steps:,} | {outcome.tokens / 1e6:.2f} | {score.loss:.3f} | {bits:.3f} | {score.accuracy:.3f}"
    print(f"| {name} | {minutes:g} | {seed} | {figures} |", flush=True)


def draw(outcomes: dict[tuple[str, float, int], Outcome], plateau: float, path: Path) -> None:
    """Draw the held-out loss of all runs over minutes, with the loss of word frequencies alone."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "clozeline"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    names = list(dict.fromkeys(name for name, _, _ in outcomes))
    for (name, _, _), outcome in outcomes.items():
        minutes = [seconds / 60 for seconds, _ in outcome.curve]
        color = f"C{names.index(name)}"
        axes.plot(minutes, [loss for _, loss in outcome.curve], color=color, marker=".", label=name)

    axes.axhline(plateau, color="gray", linestyle="--", label="word frequencies alone")
    axes.set(xscale="log", xlabel="minutes of one core", ylabel="held-out loss at [MASK], nats")
    handles, labels = axes.get_legend_handles_labels()
    by_label = dict(zip(labels, handles, strict=True))
    axes.legend(by_label.values(), by_label.keys())
    figure.savefig(path, metadata={"Date": None})


def print_probes(outcomes: dict[tuple[str, float, int], Outcome], options: argparse.Namespace) -> None:
    """Print the accuracy of linear probes on each model, over several choices of what they are fitted to."""
    tasks = {"sentences": options.sentences, "tags": options.tags}
    for task, path in tasks.items():
        if path is None:
            continue

        examples = [json.loads(line) for line in path.read_text().splitlines()]
        print(f"\n| {task} | minutes | accuracy, mean and range of {PROBE_SEEDS} |\n|---|---|---|")
        for (name, minutes, seed), outcome in outcomes.items():
            if seed > 0:
                continue
            vectors, labels = vectors_of(task, outcome.hf, examples)
            accuracies = [fitted_accuracy(vectors, labels, s, PROBE_EXAMPLES) for s in range(PROBE_SEEDS)]
            spread = f"{min(accuracies):.3f} to {max(accuracies):.3f}"
            print(f"| {name} | {minutes:g} | {means.mean(accuracies):.3f} ({spread}) |", flush=True)


def vectors_of(task: str, hf: Path, examples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the vectors and the labels of a task's examples: of sentences, or of their words."""
    model = AutoModel.from_pretrained(hf)
    tokenizer = AutoTokenizer.from_pretrained(hf)
    if task == "sentences":
        vectors = sentence_vectors(model, tokenizer, [example["text"] for example in examples])
        labels = [example["label"] for example in examples]
    else:
        vectors = word_vectors(model, tokenizer, [example["tokens"] for example in examples])
        labels = [tag for example in examples for tag in example["tags"]]

    names = sorted(set(labels))
    return vectors, torch.tensor([names.index(label) for label in labels])


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
