"""The closing lines of `vocab` and `pairs`: how much of the text becomes [UNK], and what to do if that is much."""

from __future__ import annotations

from schemas.manifest import Manifest

MUCH = 0.01
"""The share of [UNK] above which a warning is printed."""


def unknown_line(manifest: Manifest) -> str:
    """Return the line that says how a vocabulary encodes its text, or how many tokens of pairs are unknown."""
    statistics = manifest.statistics
    if manifest.kind == "vocab":
        return (
            f"  words that become [UNK]: {_unknown_share(manifest):.3%}; tokens per word: "
            f"{statistics['tokens_per_word']:.2f}"
        )
    return f"  tokens that are [UNK]: {statistics['unknown_tokens']:,}, {_unknown_share(manifest):.3%}"


def unknown_warning(manifest: Manifest) -> str | None:
    """Return a warning with its reason and a remedy if much of the text becomes [UNK], otherwise None."""
    if manifest.kind == "pairs":
        if _unknown_share(manifest) <= MUCH:
            return None
        return (
            f"{_unknown_share(manifest):.1%} of the tokens are [UNK]: words with characters that the vocabulary lacks "
            "or, in WordPiece, of more than 100 characters. Learn a vocabulary from this text; for text without spaces "
            "between words with --model unigram or --model bytebpe."
        )

    too_long = manifest.statistics.get("too_long", {"share_of_characters": 0.0})
    if too_long["share_of_characters"] > MUCH:
        return (
            f"{too_long['share_of_characters']:.1%} of the text's characters are in words of more than 100 characters, "
            "which become [UNK] in WordPiece. For text without spaces between words, give --model unigram or --model "
            "bytebpe."
        )
    if _unknown_share(manifest) > MUCH:
        return (
            f"{_unknown_share(manifest):.1%} of the words become [UNK], because they have characters that the "
            "vocabulary lacks. Give a larger --size, or --model bytebpe, which knows all."
        )
    return None


def _unknown_share(manifest: Manifest) -> float:
    statistics, totals = manifest.statistics, manifest.totals
    if manifest.kind == "vocab":
        return statistics["unknown_words"] / max(totals["words"], 1)
    return statistics["unknown_tokens"] / max(totals["tokens"], 1)
