"""A vocabulary in which each letter is a token: `python -m pipeline.vocab.letters FOLDER` writes ESM-2's.

A protein is written as one letter per amino acid, so there is nothing to learn. The ids are those of ESM-2 (Lin et al.,
Science 379, 2023; facebookresearch/esm, esm/data.py and esm/constants.py): 4 special tokens, 20 amino acids and 7 other
symbols, an unused token, and the mask. Special tokens have BERT's names, as `pairs` expects.

The folder is read like any other vocabulary: `python -m pipeline pairs --vocab FOLDER`.
"""

from __future__ import annotations

import argparse
import json
import sys

from tokenizers import Tokenizer, models, processors

from pipeline.words.rules import normalizer, pre_tokenizer
from schemas import storage
from schemas.errors import ClozelineError, UsageError
from schemas.terminal_text import terminal_safe
from schemas.vocabulary import BERT_SPECIALS, TOKENIZER_FILE, parse_vocabulary

PROTEIN_LETTERS = "LAGVSERTIDPKQNFYMHWCXBUZO.-"
"""Amino acids by frequency; X, B, U, Z and O are rare or unknown ones, and . and - are gaps in alignments."""

FIRST_TOKENS = ("[CLS]", "[PAD]", "[SEP]", "[UNK]")
UNUSED_TOKEN = "[unused1]"
CONFIG_FILE = "tokenizer_config.json"

MAX_LETTERS = 1_000_000
"""Maximum letters of one protein. The longest known protein has 45,000."""


def protein_tokens() -> list[str]:
    """Return ESM-2's 33 tokens in the order of their ids."""
    return [*FIRST_TOKENS, *PROTEIN_LETTERS, UNUSED_TOKEN, "[MASK]"]


def letter_tokenizer(tokens: list[str]) -> Tokenizer:
    """Return a tokenizer that looks up each letter separately, and makes rows of the form [CLS] A [SEP].

    It uses BERT's rules, which `pairs` encodes fast. WordPiece then cuts each run of letters into single letters,
    because all tokens have one letter, and "##" does not mark the continuation of a word. An unknown letter makes its
    run [UNK].
    """
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocab=vocab, unk_token="[UNK]", continuing_subword_prefix="", max_input_chars_per_word=MAX_LETTERS
        )
    )
    tokenizer.normalizer = normalizer(lowercase=False)  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizer("wordpiece")  # type: ignore[assignment]
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer.add_special_tokens(list(BERT_SPECIALS.values()))
    return tokenizer


def write_letter_vocabulary(folder: str) -> None:
    """Write the folder. Raises UsageError if it has another vocabulary, and StorageError if it cannot be written."""
    content = letter_tokenizer(protein_tokens()).to_str(pretty=True).encode()
    config: dict[str, object] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    config |= {f"{role}_token": token for role, token in BERT_SPECIALS.items()}
    config["model_input_names"] = ["input_ids", "attention_mask"]

    url = storage.join(folder, TOKENIZER_FILE)
    fingerprint = parse_vocabulary(content, url).fingerprint
    if storage.exists(url) and parse_vocabulary(storage.read(url), url).fingerprint != fingerprint:
        raise UsageError(f"{url} is another vocabulary. Give a new folder, or remove this one.")

    storage.publish(storage.join(folder, CONFIG_FILE), (json.dumps(config, indent=1) + "\n").encode())
    storage.publish(url, content)


def main(arguments: list[str] | None = None) -> int:
    """Write the vocabulary and return the process's exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m pipeline.vocab.letters", description="Write ESM-2's vocabulary: one letter is one token."
    )
    parser.add_argument("folder", metavar="FOLDER", help="folder to write, a path or a URL")
    folder = parser.parse_args(arguments).folder

    try:
        write_letter_vocabulary(folder)
    except ClozelineError as error:
        print(f"{parser.prog}: {terminal_safe(str(error))}", file=sys.stderr)
        return error.exit_code

    print(f"{folder}: {len(protein_tokens())} tokens")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
