"""The options of `vocab`, which learns a vocabulary or extends one. Nothing here may import Beam (see options.py)."""

# ruff: noqa: RUF009 (`option` and `switch` return dataclass fields, which is what a dataclass expects here)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipeline.flags import OneOf, folder, option, positive, switch_pair
from pipeline.shared_options import output_flag, overwrite_flag, shuffle_flag
from schemas.errors import UsageError

if TYPE_CHECKING:
    from pipeline.exchange.blocks import Shuffle
    from schemas.vocabulary import Family, Model


@dataclass(frozen=True, kw_only=True)
class VocabJob:
    """Options of `vocab`: text shards to word counts to a vocabulary.

    `lowercase` and `keep_accents` are None until the language of the text has decided what the user did not.
    """

    text: str | None = option(
        None, help="folder written by shard; not needed with finished --counts", check=folder, recorded=False
    )
    counts: str | None = option(
        None,
        help="folder of word counts: written when --text is given and it is not finished, then read; vocabularies of "
        "other sizes and kinds can be learned from it",
        check=folder,
        recorded=False,
    )
    output: str = output_flag()
    extend: str | None = option(
        None,
        help="folder of a vocabulary or a published tokenizer to add tokens to, instead of --model and --size",
        check=folder,
        recorded=False,
    )
    add: int | None = option(
        None,
        check=positive,
        metavar="N",
        help="with --extend: tokens to add, those that save most tokens in the text",
    )
    model: Model = option(
        None,
        check=OneOf(("wordpiece", "bytebpe", "unigram")),
        help="BERT's kind, RoBERTa's, or ALBERT's and XLNet's (SentencePiece)",
    )
    size: int = option(None, check=positive, help="number of tokens, special tokens included")
    lowercase: bool = switch_pair(
        None,
        help="ignore case, and accents too in wordpiece: the default of unigram with ALBERT's special tokens, and of "
        "wordpiece if the text's language is English or Chinese",
        off_help="keep case, and accents too in wordpiece: the default of the others",
    )
    special_tokens: Family = option(
        "albert",
        check=OneOf(("albert", "xlnet")),
        help="whose special tokens a unigram vocabulary has, and whose case by default",
    )
    keep_accents: bool = switch_pair(
        None,
        help="unigram: keep accents: the default unless the text's language is English or Chinese",
        off_help="unigram: ignore accents, as ALBERT and XLNet do: the default for English and Chinese text",
    )
    min_frequency: int = option(
        2,
        check=positive,
        help="pairs of tokens that occur less often are not merged; with --extend, words (wordpiece), pairs (bytebpe) "
        "or parts of words (unigram) that do are not added; not for --model unigram, which merges no pairs",
    )
    min_word_count: int = option(
        1,
        check=positive,
        help="words that occur less often are left out of learning, to save memory; the ledger says how many",
    )
    max_alphabet: int | None = option(
        None,
        check=positive,
        help="maximum characters in a wordpiece or unigram alphabet; rarer ones become [UNK] (default: half of --size, "
        "and more if merges leave places free)",
    )
    pad_to_multiple: int = option(
        1,
        check=positive,
        help="round the size up to a multiple with [unusedN] tokens",
    )
    shuffle: Shuffle | Literal["auto"] = shuffle_flag("the counts of a word are brought together")
    overwrite: bool = overwrite_flag()

    @classmethod
    def from_flags(cls, given: dict[str, Any]) -> VocabJob:
        """Return the job for the flags that the user gave. Raises UsageError for a flag that would have no effect."""
        if "text" not in given and "counts" not in given:
            raise UsageError("vocab needs --text, a folder written by shard, or --counts, a folder of word counts.")

        if "extend" in given or "add" in given:
            return cls._extending(given)
        missing = [f"--{name}" for name in ("model", "size") if name not in given]
        if missing:
            raise UsageError(f"vocab needs {' and '.join(missing)}, or --extend and --add to extend a vocabulary.")

        model = given["model"]
        if given.get("lowercase") and model == "bytebpe":
            raise UsageError("--lowercase changes nothing with --model bytebpe, which keeps every byte. Leave it out.")
        if model == "unigram" and "min_frequency" in given:
            raise UsageError(
                "--min_frequency changes nothing with --model unigram, which merges no pairs. Leave it out."
            )
        if model != "unigram":
            for name in ("special_tokens", "keep_accents"):
                if name in given:
                    raise UsageError(f"--{name} applies to --model unigram, not to {model}. Leave it out.")

        return cls(**given)

    @classmethod
    def _extending(cls, given: dict[str, Any]) -> VocabJob:
        """Return the job for --extend. Its model, case and size are taken from the folder when it is read."""
        if "extend" not in given or "add" not in given:
            raise UsageError("--extend FOLDER and --add N belong together: the vocabulary, and how many tokens to add.")

        decided = ("model", "size", "lowercase", "special_tokens", "keep_accents", "max_alphabet", "pad_to_multiple")
        for name in decided:
            if name in given:
                raise UsageError(f"--{name} follows from the vocabulary that --extend names. Leave it out.")
        return cls(**given)
