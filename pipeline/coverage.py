"""How much of a text a vocabulary covers, as `vocab` and `pairs` say it on the terminal when they end."""

from __future__ import annotations

from schemas import storage
from schemas.errors import ClozelineError
from schemas.manifest import Manifest, read_manifest

MAX_UNKNOWN = 0.01
"""Share of words or of tokens above which [UNK] is a warning."""

WARNING = "much of this text becomes [UNK], which teaches a model nothing: "


def coverage_line(manifest: Manifest) -> str:
    """Return the coverage of words and the share of [UNK] among the tokens.

    manifest: of a vocabulary, or of pairs. A word is covered if no token of it is [UNK].
    """
    words, unknown_words, tokens, unknown_tokens = _counts(manifest)
    coverage = 1 - unknown_words / max(words, 1)
    unknown_share = unknown_tokens / max(tokens, 1)
    return f"  coverage {coverage:.3%} of {words:,} words; {unknown_share:.3%} of {tokens:,} tokens are [UNK]"


def vocabulary_warning(vocabulary: Manifest) -> str:
    """Return why much of a vocabulary's own text becomes [UNK], and what to do; empty if little does."""
    return WARNING + _reason(vocabulary) if _is_much(vocabulary) else ""


def pairs_warning(pairs: Manifest, vocabulary_folder: str) -> str:
    """Return why much of the pairs' text becomes [UNK], and what to do; empty if little does."""
    if not _is_much(pairs):
        return ""
    folder = storage.printable(vocabulary_folder)
    try:
        vocabulary = read_manifest(vocabulary_folder, "vocab")
    except ClozelineError:  # a published tokenizer has no manifest
        vocabulary = None

    # What is unknown in the vocabulary's own text is unknown here only if this is that text.
    if vocabulary is not None and vocabulary.inputs[0].fingerprint == pairs.inputs[0].fingerprint:
        return WARNING + _reason(vocabulary)
    return (
        f"{WARNING}the vocabulary in {folder} was made from other text. Make one from this text with `vocab`; "
        "--model unigram and --model bytebpe know words of any length, and bytebpe every character."
    )


def _counts(manifest: Manifest) -> tuple[int, int, int, int]:
    """Return the number of words, of those with [UNK], of tokens, and of those that are [UNK]."""
    statistics = manifest.statistics
    if manifest.kind == "pairs":
        return statistics["words"], statistics["unknown_words"], manifest.totals["tokens"], statistics["unknown_tokens"]

    words = manifest.totals["words"]
    tokens = sum(round(source["words"] * source["tokens_per_word"]) for source in statistics["by_source"].values())
    return words, statistics["unknown_words"], tokens, statistics["unknown_tokens"]


def _is_much(manifest: Manifest) -> bool:
    words, unknown_words, tokens, unknown_tokens = _counts(manifest)
    return unknown_words > MAX_UNKNOWN * words or unknown_tokens > MAX_UNKNOWN * tokens


def _reason(vocabulary: Manifest) -> str:
    """Return the most frequent reason why words of a vocabulary's own text become [UNK], and what to do."""
    too_long = vocabulary.statistics["too_long_words"]
    unknown = vocabulary.statistics["unknown_words"]
    if 2 * too_long >= unknown:
        return (
            f"{too_long:,} of {unknown:,} unknown words are longer than WordPiece takes, as in scripts without spaces. "
            "Use --model unigram or --model bytebpe."
        )

    options = vocabulary.options
    reason = f"{unknown - too_long:,} of {unknown:,} unknown words have a character that the vocabulary lacks. "
    if options.get("add") is not None:
        return reason + "--extend adds no characters: make a new vocabulary from this text."
    if options.get("max_alphabet") is not None:
        return reason + f"Give more than --max_alphabet {options['max_alphabet']}, or use --model bytebpe."
    if options.get("min_word_count", 1) > 1:
        return reason + f"Lower --min_word_count {options['min_word_count']}, or use --model bytebpe."
    return reason + "Give a larger --size, or use --model bytebpe."
