"""Measures `vocab --extend` in continued training: tokens saved, and the loss per character with and without it.

    python benchmarks/extend_training.py HF DOMAIN.jsonl [...] --output OUT [--add 500] [--seeds 3]

HF is an exported masked LM with the shape of small_runs.py, such as the hf_bert_0 that objectives.py leaves in its
output. DOMAIN.jsonl has a document in the key "text" of each line. The model is trained further on every other document
with `model.init_from`, once with its own vocabulary and once with `--add` more tokens. The rest is held out.

A token of the extended vocabulary covers more text, so neither losses per token nor steps with equal numbers of tokens
are comparable. Here a step has the same number of characters with both vocabularies: with the extended one it has fewer
tokens, in proportion to the number of tokens of the training text.

The loss is the negative pseudo-log-likelihood (arXiv:1910.14659) of held-out sentences: each token is masked once, and
the sum of the negative log-likelihoods is divided by the number of characters. It is computed in two ways:

    of words     masks each token with the later tokens of its word (arXiv:2305.10588). By the chain rule, the sum over
                 a word is the loss of the whole word, however it is split, so vocabularies are comparable.
    of tokens    masks each token alone. The other tokens of its word then give it away, which favors the vocabulary
                 that splits words into more tokens.

Sentences with an unknown word in either vocabulary are left out, because [UNK] stands for any word.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import small_runs
import torch
from small_runs import ROW_LENGTH, Settings, mean_and_range, sentences_of
from tokenizers import Encoding, Tokenizer

from schemas.manifest import read_manifest
from schemas.vocabulary import TOKENIZER_FILE, read_vocabulary
from trainer.build_model import initial_weights
from trainer.checkpoint.format import checkpoint_path
from trainer.config.load import load_recipe
from trainer.data.folder import PairFolder
from trainer.export.convert import read_model
from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.pretraining import PretrainingModel, empty_model

TOKENS_PER_STEP = 1000
SPECIAL_TOKENS = 2  # of every row
WAYS = ("words", "tokens")

Losses = dict[str, float]
"""The loss of each of WAYS, in nats per character."""


@dataclass(frozen=True)
class Continued:
    """One way to continue the base model: a vocabulary, pairs, and the number of tokens per step."""

    name: str
    vocabulary: Path
    pairs: Path
    tokens_per_step: int


def main() -> None:
    flags = argparse.ArgumentParser(description="Continues a small model with and without an extended vocabulary.")
    flags.add_argument("hf", type=Path)
    flags.add_argument("domain", nargs="+")
    flags.add_argument("--output", type=Path, required=True)
    flags.add_argument("--add", type=int, default=500)
    flags.add_argument("--steps", type=int, default=200)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--lr", default="1e-3")
    flags.add_argument("--sentences", type=int, default=200, help="held-out sentences that are scored")
    options = flags.parse_args()
    torch.set_num_threads(1)

    out = options.output
    documents = small_runs.documents_of(options.domain)
    small_runs.make_text(small_runs.write_documents(documents[::2], out / "training.jsonl"), out / "text")
    small_runs.make_text(small_runs.write_documents(documents[1::2], out / "held_out.jsonl"), out / "held_out_text")
    ways = make_pairs(options.hf, out, options.add)
    sample = sample_of(out / "held_out_text", [way.vocabulary for way in ways], options.sentences)

    print("\n| vocabulary | tokens of a step | loss of | before | after |\n|---|---|---|---|---|")
    for way in ways:
        before: Losses = {}
        after: list[Losses] = []
        for seed in range(options.seeds):
            settings = continued_settings(options.hf, way, options.steps)
            settings |= {"optimizer.lr": options.lr, "run.seed": seed}
            run = out / f"run_{way.name}_{seed}"
            small_runs.train(run, settings)

            before = before or losses_of(initial_model(run), way, sample)
            after.append(losses_of(last_model(run, options.steps), way, sample))
        print_rows(way, before, after)


# ---- Data and runs ----


def make_pairs(hf: Path, out: Path, add: int) -> list[Continued]:
    """Extend the model's vocabulary with words of the training text, and make pairs with both vocabularies."""
    extended = out / "extended"
    extend = f"--extend {hf} --add {add} --output {extended}"
    small_runs.make(extended, f"python -m pipeline vocab --text {out / 'text'} {extend}")

    ways = []
    base_tokens = 0
    for name, vocabulary in (("base", hf), ("extended", extended)):
        pairs = out / f"pairs_{name}"
        small_runs.make_pairs(out / "text", vocabulary, pairs)

        # Both folders hold the same text, so steps in the ratio of their tokens have equal numbers of characters.
        tokens = read_manifest(str(pairs), "pairs").totals["tokens"]
        base_tokens = base_tokens or tokens
        ways.append(Continued(name, vocabulary, pairs, round(TOKENS_PER_STEP * tokens / base_tokens)))
    return ways


def continued_settings(hf: Path, way: Continued, steps: int) -> Settings:
    return {
        "data.pairs": way.pairs,
        "model.init_from": hf,
        "schedule.warmup_steps": steps // 10,
        "batch.global_batch": "none",
        "batch.micro_batch": "none",
        "batch.global_tokens": way.tokens_per_step,
        "batch.micro_tokens": way.tokens_per_step,
        "run.max_steps": steps,
    }


def initial_model(run: Path) -> PretrainingModel:
    """Return the model that a run started from: the base's weights, and means of old embeddings for new tokens."""
    recipe = load_recipe(str(run / "recipe.toml"), [])
    pairs = PairFolder(recipe.data.folders[0])
    model = empty_model(recipe.model, pairs.vocabulary.size, pairs.vocabulary.special_id("mask"))
    model.assign_weights({name: weight.detach() for name, weight in initial_weights(recipe, [pairs])})
    pairs.close()
    return model.eval()


def last_model(run: Path, step: int) -> PretrainingModel:
    recipe = load_recipe(str(run / "recipe.toml"), [])
    return read_model(checkpoint_path(str(run), step), recipe, read_vocabulary(str(run / "vocabulary")))


# ---- The loss per character ----


def sample_of(text: Path, vocabularies: list[Path], count: int) -> list[str]:
    """Return evenly spaced sentences from those that fit into a row and have no unknown word in any vocabulary.

    Prints the number of tokens of all sentences in each vocabulary.
    """
    sentences = list(chain.from_iterable(sentences_of(text)))
    is_kept = [True] * len(sentences)
    for vocabulary in vocabularies:
        encodings = Tokenizer.from_file(str(vocabulary / TOKENIZER_FILE)).encode_batch(sentences)
        is_kept = [kept and is_scored(encoding) for kept, encoding in zip(is_kept, encodings, strict=True)]
        tokens = sum(len(encoding.ids) - SPECIAL_TOKENS for encoding in encodings)
        print(f"{vocabulary}: {tokens:,} tokens of held-out text", flush=True)

    kept = [sentence for sentence, is_good in zip(sentences, is_kept, strict=True) if is_good]
    sample = kept[:: max(1, len(kept) // count)][:count]
    print(f"{len(kept):,} of {len(sentences):,} held-out sentences can be scored", flush=True)
    print(f"{len(sample):,} of these are, which have {sum(map(len, sample)):,} characters", flush=True)
    return sample


def is_scored(encoding: Encoding) -> bool:
    return "[UNK]" not in encoding.tokens and SPECIAL_TOKENS < len(encoding.ids) <= ROW_LENGTH


@torch.inference_mode()
def losses_of(model: PretrainingModel, way: Continued, sample: list[str]) -> Losses:
    """Return the negative pseudo-log-likelihood of the sample, in nats per character."""
    tokenizer = Tokenizer.from_file(str(way.vocabulary / TOKENIZER_FILE))
    mask_id = tokenizer.token_to_id("[MASK]")
    assert mask_id is not None, "every masked LM has it"
    sums = dict.fromkeys(WAYS, 0.0)
    for encoding in tokenizer.encode_batch(sample):
        for unit in WAYS:
            sums[unit] += float(model(masked_copies(encoding, mask_id, whole_rest=unit == "words")).mlm_sum)

    characters = sum(map(len, sample))
    return {unit: total / characters for unit, total in sums.items()}


def masked_copies(encoding: Encoding, mask_id: int, whole_rest: bool) -> PackedBatch:
    """Return a batch with a copy of a sentence for each of its tokens, in which that token is masked.

    whole_rest: whether to mask the later tokens of its word as well.
    Shape suffixes: L tokens of the sentence, S copies; those of PackedBatch are explained there.
    """
    ids_L = torch.tensor(encoding.ids)
    length = len(ids_L)
    word_ids = encoding.word_ids  # None for [CLS] and [SEP]
    scored_S = torch.tensor([place for place, word in enumerate(word_ids) if word is not None])
    copies = len(scored_S)

    ids_SL = ids_L.repeat(copies, 1)
    for row, place in enumerate(scored_S.tolist()):
        ids_SL[row, place] = mask_id
        for later in range(place + 1, length):
            if whole_rest and word_ids[later] == word_ids[place]:
                ids_SL[row, later] = mask_id

    starts_S = torch.arange(copies) * length
    return PackedBatch(
        ids_T=ids_SL.flatten(),
        segments_T=torch.zeros(copies * length, dtype=torch.int64),
        positions_T=torch.arange(length).repeat(copies),
        sequence_T=torch.arange(copies).repeat_interleave(length),
        sequence_starts_S=starts_S,
        longest=length,
        masked_positions_K=starts_S + scored_S,
        labels_K=ids_L[scored_S],
        pair_labels_S=torch.full((copies,), IGNORE_INDEX),
        tokens=copies * length,
        predicted=copies,
        paired=0,
    )


def print_rows(way: Continued, before: Losses, after: list[Losses]) -> None:
    for unit in WAYS:
        figures = f"{before[unit]:.4f} | {mean_and_range([losses[unit] for losses in after], 4)}"
        print(f"| {way.name} | {way.tokens_per_step:,} | {unit} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
