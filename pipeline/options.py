"""The options of `shard`, `pairs` and `statistics`; vocab_options.py has the options of `vocab`.

Each field is a command-line flag with its default and help text (see flags.py). Nothing here may import Beam, so that
`--help` answers at once.
"""

# ruff: noqa: RUF009 (`option` and `switch` return dataclass fields, which is what a dataclass expects here)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipeline.flags import OneOf, folder, fraction, option, positive, share
from pipeline.readers.record import MAX_RATIO, MAX_RECORD, MAX_UNDECODABLE_RATIO, Format, TextLayout
from pipeline.shared_options import output_flag, overwrite_flag, shuffle_flag, text_flag
from pipeline.vocab_options import VocabJob as VocabJob
from schemas.errors import UsageError
from schemas.masking import KINDS

if TYPE_CHECKING:
    from pipeline.pairs.nsp_sop import Objective
    from pipeline.runtime.exchange import Shuffle
    from pipeline.shard.copies import Dedup
    from pipeline.shard.sentences import Splitter
    from schemas.masking import Kind


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Options of `shard`: corpora to text shards."""

    input: list[str] = option(
        help="files or patterns, with spaces or commas between them; may be repeated; .gz .bz2 .xz .zst are "
        "decompressed",
        many=True,
        recorded=False,
    )
    output: str = output_flag()
    format: Format | Literal["auto"] = option(
        "auto",
        check=OneOf(("auto", *get_args(Format))),
        help="format of the input; auto detects it by name and content",
    )
    text_layout: TextLayout = option(
        "blank_line",
        check=OneOf(get_args(TextLayout)),
        help="what separates documents in plain text",
    )
    text_key: str = option("text", help="the JSON key or the Parquet column that holds the text")
    encoding: str = option(
        "utf-8",
        help="character encoding of text and JSON files, such as cp1252, gb18030 or utf-16",
    )
    language: str = option("en", help="ISO 639 code or English name, for the sentence splitter")
    sentence_splitter: Splitter = option(
        "sentencex",
        check=OneOf(("sentencex", "newline")),
        help="newline: the input has one sentence per line",
    )
    dedup: Dedup = option(
        "none",
        check=OneOf(("none", "exact", "minhash")),
        help="exact: drop documents with equal text; minhash: drop those with nearly equal text too",
    )
    holdout: float | None = option(
        None,
        check=fraction,
        metavar="SHARE",
        help="share of the documents to put into a second text folder, OUTPUT_heldout, for evaluation (default: none)",
    )
    num_shards: int | None = option(
        None,
        check=positive,
        help="number of text shards (default: one per 8 MB of text; in a large corpus, per --shard_megabytes)",
    )
    shard_megabytes: int = option(64, check=positive, help="maximum mean size of a shard, in MB of text")
    shuffle: Shuffle | Literal["auto"] = shuffle_flag("documents travel to their shards")
    max_bad_ratio: float = option(0.01, check=share, help="share of bad records above which the job fails")
    max_undecodable_ratio: float = option(
        MAX_UNDECODABLE_RATIO,
        check=share,
        help="share of a file's bytes that are not in its encoding above which the job fails; below, they are removed",
    )
    max_document_bytes: int = option(
        MAX_RECORD,
        check=positive,
        help="larger documents are rejected as bad records",
    )
    max_decompression_ratio: int = option(
        MAX_RATIO,
        check=positive,
        help="how many times its compressed size a file may grow to; below 256 MB any growth is allowed",
    )
    seed: int = option(0, check=int, help="seed for shuffling", recorded=False)
    overwrite: bool = overwrite_flag()


@dataclass(frozen=True, kw_only=True)
class PairsJob:
    """Options of `pairs`: text shards and a vocabulary to pair shards."""

    text: str = text_flag()
    vocab: str = option(
        check=folder,
        help="folder written by vocab, or a published tokenizer's folder",
        recorded=False,
    )
    output: str = output_flag()
    objective: Objective = option(
        check=OneOf(("nsp", "sop", "full_sentences", "doc_sentences")),
        help="BERT's or ALBERT's pairs, or RoBERTa's rows",
    )
    max_length: int = option(128, check=positive, help="maximum tokens per row, special tokens included")
    short_seq_prob: float = option(0.1, check=share, help="pairs: share of documents cut to shorter rows")
    dupe_factor: int = option(
        1,
        check=positive,
        help="passes over the text, each with its own random draws",
    )
    word_segmenter: Literal["none", "jieba"] = option(
        "none",
        check=OneOf(("none", "jieba")),
        help="how Chinese text is divided into words",
    )
    static_masks: int = option(
        0,
        check=positive,
        metavar="K",
        help="store K masks with each row (default: none; the trainer masks)",
    )
    masking: Kind = option("token", check=OneOf(tuple(KINDS)), help="kind of the static masks")
    mask_prob: float = option(0.15, check=share, help="share of a row's tokens in a static mask")
    max_predictions: int | None = option(
        None,
        check=positive,
        help="maximum masked tokens per row in a static mask (default: no maximum)",
    )
    seed: int = option(
        0,
        check=int,
        help="seed for the pairs, the order of rows and the static masks",
        recorded=False,
    )
    overwrite: bool = overwrite_flag()

    @classmethod
    def from_flags(cls, given: dict[str, Any]) -> PairsJob:
        """Return the job for the flags that the user gave. Raises UsageError for a flag that would have no effect."""
        objective = given["objective"]
        if "short_seq_prob" in given and objective in ("full_sentences", "doc_sentences"):
            raise UsageError(f"--short_seq_prob changes nothing with --objective {objective}. Leave it out.")

        if "static_masks" not in given:
            for name in ("masking", "mask_prob", "max_predictions"):
                if name in given:
                    raise UsageError(
                        f"--{name} applies only to the masks that --static_masks K stores; the trainer's own masking "
                        "is set in its recipe."
                    )
        return cls(**given)


@dataclass(frozen=True, kw_only=True)
class StatisticsJob:
    """Options of `statistics`: pair shards to counts of tokens and of their co-occurrences."""

    pairs: str = option(help="folder written by pairs", check=folder, recorded=False)
    output: str = output_flag()
    window: int = option(3, check=positive, help="greatest distance, in tokens, at which two tokens co-occur")
    max_tokens: int = option(
        256_000_000,
        check=positive,
        metavar="N",
        help="maximum tokens to count, at most 51 billion / --window; the rows of larger folders are sampled",
    )
    max_cooccurrences: int = option(
        50_000_000,
        check=positive,
        metavar="N",
        help="maximum co-occurrences to keep; the rarest are dropped first",
    )
    shuffle: Shuffle | Literal["auto"] = shuffle_flag("counts travel to where they are added up")
    overwrite: bool = overwrite_flag()
