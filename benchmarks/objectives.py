"""Compares a masked LM with ELECTRA at equal compute on the same text, by linear probes of their frozen vectors.

    python benchmarks/objectives.py CORPUS.jsonl [...] --output OUT [--steps 2000] [--seeds 3] [--lr 3e-3]

CORPUS.jsonl has a document in the key "text" of each line; every eighth document is held out. Both objectives train
the same encoder (2 layers of width 128) on the same rows of 64 tokens with `python -m trainer`; ELECTRA also has a
generator of a quarter of its width. ELECTRA takes `--steps` steps, and the masked LM as many as give the same FLOPs
by `--describe`. Each run is exported and opened with transformers.

The task is truecasing. The vocabulary ignores case, so no model has seen it: for each word in the held-out documents
that does not start its sentence, was its first letter a capital? A logistic regression predicts it from the vector of
the word's first token. It is fitted to half of the held-out documents, and scored on the other half. "Embeddings" is
the same with the input vectors of the encoder's first layer, which contain only the word and its position.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import small_runs
import torch
from small_runs import Settings, mean_and_range, sentences_of
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

VOCABULARY_SIZE = 8000
HELD_OUT_EVERY = 8
FAMILIES = {"masked LM": "bert", "ELECTRA": "electra"}
LAYERS = {"embeddings": 0, "last layer": -1}
SENTENCES_AT_ONCE = 64
MAX_TOKENS = 128  # the number of positions in the recipe
L2 = 1e-4


@dataclass(frozen=True)
class ProbedWords:
    """N words of some sentences: one layer's vectors of their first tokens, (N, D), and whether they had a capital."""

    vectors_ND: Tensor
    is_capital_N: Tensor


@dataclass(frozen=True)
class Figures:
    """The scores of a probe. f1: of the words with a capital. accuracy: over all words.

    f1 uses the threshold that is best for the words that the probe was fitted to, accuracy a probability of 1/2.
    """

    f1: float
    accuracy: float


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run: the last line of its metrics, and the figures of the probe on each layer."""

    metrics: dict[str, Any]
    probes: dict[str, Figures]


def main() -> None:
    flags = argparse.ArgumentParser(description="Compares objectives at equal compute.")
    flags.add_argument("corpora", nargs="+")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--steps", type=int, default=2000, help="of ELECTRA")
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--lr", default="3e-3", help="of both objectives")
    options = flags.parse_args()
    torch.set_num_threads(1)

    out = options.output
    make_data(options.corpora, out)
    common: Settings = {
        "data.pairs": out / "pairs",
        "evaluation.pairs": out / "held_out_pairs",
        "optimizer.lr": options.lr,
        "schedule.warmup_steps": min(100, options.steps // 2),
    }
    steps = equal_steps(common, options.steps)

    outcomes: dict[str, list[Outcome]] = {name: [] for name in FAMILIES}
    for seed in range(options.seeds):
        for name, family in FAMILIES.items():
            settings = {**common, "model.family": family, "run.max_steps": steps[name], "run.seed": seed}
            outcomes[name].append(run_once(out, f"{family}_{seed}", settings))
    print_tables(steps, outcomes)


def make_data(corpora: list[str], out: Path) -> None:
    """Make OUT/pairs and OUT/held_out_pairs, both with the vocabulary of the training text."""
    documents = small_runs.documents_of(corpora)
    held_out = documents[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    training = [document for i, document in enumerate(documents) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]

    small_runs.make_text(small_runs.write_documents(training, out / "training.jsonl"), out / "text")
    small_runs.make_text(small_runs.write_documents(held_out, out / "held_out.jsonl"), out / "held_out_text")
    small_runs.make_vocabulary(out / "text", out / "vocab", VOCABULARY_SIZE)
    small_runs.make_pairs(out / "text", out / "vocab", out / "pairs")
    small_runs.make_pairs(out / "held_out_text", out / "vocab", out / "held_out_pairs")


def equal_steps(common: Settings, electra_steps: int) -> dict[str, int]:
    """Return the steps of each objective. Batches are equal, so steps are inversely proportional to FLOPs per token."""
    flops = {}
    for name, family in FAMILIES.items():
        flops[name] = small_runs.flops_per_token({**common, "model.family": family})
        print(f"{name}: {flops[name] / 1e6:.3f} million FLOPs a token", flush=True)
    return {name: round(electra_steps * flops["ELECTRA"] / flops[name]) for name in FAMILIES}


def run_once(out: Path, name: str, settings: Settings) -> Outcome:
    """Train, export, and probe the frozen encoder."""
    run = out / f"run_{name}"
    metrics = small_runs.train(run, settings)
    hf = out / f"hf_{name}"
    small_runs.export(run, hf)

    probes = probe(hf, sentences_of(out / "held_out_text"))
    for layer, figures in probes.items():
        print(f"{name}, {layer}: F1 {figures.f1:.4f}, accuracy {figures.accuracy:.4f}", flush=True)
    return Outcome(metrics, probes)


# ---- The probe ----


def probe(hf: Path, documents: list[list[str]]) -> dict[str, Figures]:
    """Return the figures of each layer, for a probe that is fitted to every other document and scored on the rest."""
    fitted_to = words_of(hf, list(chain.from_iterable(documents[::2])))
    measured_on = words_of(hf, list(chain.from_iterable(documents[1::2])))
    return {layer: fit_and_measure(fitted_to[layer], measured_on[layer]) for layer in LAYERS}


@torch.inference_mode()
def words_of(hf: Path, sentences: list[str]) -> dict[str, ProbedWords]:
    """Return the words of the sentences with their vectors in each of LAYERS. Each sentence is one row."""
    tokenizer = AutoTokenizer.from_pretrained(hf)
    model = AutoModel.from_pretrained(hf).eval()
    vectors: dict[str, list[Tensor]] = {layer: [] for layer in LAYERS}
    is_capital: list[bool] = []

    # Sorting gives rows of similar lengths, with little padding. The order of words does not affect the probe.
    remaining = iter(sorted(sentences, key=len))
    while batch := list(islice(remaining, SENTENCES_AT_ONCE)):
        encoded = tokenizer(batch, truncation=True, max_length=MAX_TOKENS, padding=True, return_tensors="pt")
        places: list[tuple[int, int]] = []
        for row, sentence in enumerate(batch):
            for token, start in words_after_the_first(encoded, row, sentence):
                places.append((row, token))
                is_capital.append(sentence[start].isupper())

        hidden = model(**encoded, output_hidden_states=True).hidden_states
        rows_N, tokens_N = torch.tensor(places, dtype=torch.int64).reshape(-1, 2).T
        for layer, index in LAYERS.items():
            vectors[layer].append(hidden[index][rows_N, tokens_N])

    is_capital_N = torch.tensor(is_capital)
    return {layer: ProbedWords(torch.cat(vectors[layer]), is_capital_N) for layer in LAYERS}


def words_after_the_first(encoded: Any, row: int, sentence: str) -> list[tuple[int, int]]:
    """Return (first token, first character) of each word of a row that starts with a letter, except the first one."""
    found = []
    previous_word = None
    for token, word in enumerate(encoded.word_ids(row)):
        if word is None or word == previous_word:
            continue

        previous_word = word
        start = encoded.token_to_chars(row, token).start
        if sentence[start].isalpha():
            found.append((token, start))
    return found[1:]


def fit_and_measure(fitted_to: ProbedWords, measured_on: ProbedWords) -> Figures:
    """Fit a logistic regression with a small L2 penalty by full-batch L-BFGS, and return its scores on other words."""
    mean_D = fitted_to.vectors_ND.mean(dim=0)
    deviation_D = fitted_to.vectors_ND.std(dim=0) + 1e-6
    x_ND = (fitted_to.vectors_ND - mean_D) / deviation_D
    labels_N = fitted_to.is_capital_N.float()

    weight_D = torch.zeros(x_ND.shape[1], requires_grad=True)
    bias = torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight_D, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.binary_cross_entropy_with_logits(x_ND @ weight_D + bias, labels_N) + L2 * weight_D.square().sum()
        value.backward()
        return value

    optimizer.step(loss)  # type: ignore[arg-type]

    with torch.no_grad():
        threshold = best_threshold(x_ND @ weight_D + bias, fitted_to.is_capital_N)
        scores_N = ((measured_on.vectors_ND - mean_D) / deviation_D) @ weight_D + bias

    is_capital_N = measured_on.is_capital_N
    answers_N = scores_N >= threshold
    right = int((answers_N & is_capital_N).sum())
    f1 = 2 * right / max(1, int(answers_N.sum()) + int(is_capital_N.sum()))
    return Figures(f1, float(((scores_N > 0) == is_capital_N).float().mean()))


def best_threshold(scores_N: Tensor, is_capital_N: Tensor) -> Tensor:
    """Return the threshold on scores at which predicting "capital" has the highest F1.

    Few words have a capital, so its probability is seldom above 1/2, the threshold with the highest accuracy.
    """
    falling_N, order_N = scores_N.sort(descending=True)
    right_N = is_capital_N[order_N].cumsum(dim=0)
    answered_N = torch.arange(1, len(scores_N) + 1)
    f1_N = 2 * right_N / (answered_N + is_capital_N.sum())
    return falling_N[f1_N.argmax()]


# ---- The tables ----


def print_tables(steps: dict[str, int], outcomes: dict[str, list[Outcome]]) -> None:
    print("\n| objective | steps | processor seconds | masked LM loss | detector's loss | its accuracy | replaced |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in outcomes.items():
        cells = [name, f"{steps[name]:,}", column(runs, "processor_seconds", 0), column(runs, "eval_mlm_loss", 3)]
        cells += [column(runs, f"eval_{figure}", 3) for figure in ("rtd_loss", "rtd_accuracy", "replaced_fraction")]
        print(f"| {' | '.join(cells)} |")

    print("\n| objective | vectors | F1 of capitals | accuracy |\n|---|---|---|---|")
    for name, runs in outcomes.items():
        for layer in LAYERS:
            f1 = mean_and_range([run.probes[layer].f1 for run in runs], 3)
            accuracy = mean_and_range([run.probes[layer].accuracy for run in runs], 3)
            print(f"| {name} | {layer} | {f1} | {accuracy} |")


def column(runs: list[Outcome], figure: str, digits: int) -> str:
    """Return the mean and the range of a figure in the last metrics; empty if the objective does not have it."""
    values = [run.metrics[figure] for run in runs if figure in run.metrics]
    return mean_and_range(values, digits) if values else ""


if __name__ == "__main__":
    main()
