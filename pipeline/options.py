"""The options of each job. A field is a command-line flag with its default and help text (see flags.py).

Nothing here may import Beam, so that `--help` answers at once.
"""

# ruff: noqa: RUF009 (`option` and `switch` return dataclass fields, which is what a dataclass expects here)

from __future__ import annotations

from dataclasses import MISSING, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from pipeline.flags import fraction, option, several, share, switch, switch_pair
from pipeline.readers.record import MAX_RATIO, MAX_RECORD, MAX_UNDECODABLE_RATIO, Format, TextLayout
from schemas.command_line import folder_path, positive, whole_number_from
from schemas.errors import UsageError
from schemas.masking import KINDS
from schemas.vocabulary_kinds import VOCABULARY_KINDS, flags_of_others, kind_of

if TYPE_CHECKING:
    from pipeline.exchange.blocks import Shuffle
    from pipeline.filters.rules import Thresholds
    from pipeline.shard.copies import Dedup
    from pipeline.shard.sentences import Splitter
    from schemas.manifest import Objective
    from schemas.masking import Kind
    from schemas.vocabulary_kinds import Family, Model


megabytes_of_shard = whole_number_from(1, 2000)  # Arrow holds 2 GB of text in one


def folder_flag(help: str, default: Any = MISSING) -> Any:
    return option(default, help=help, check=folder_path, recorded=False)


def output_flag() -> Any:
    return folder_flag("folder to write, local or a URL (s3://, gs://)")


def shuffle_flag(what: str) -> Any:
    """Return the field of --shuffle. `what` is brought together."""
    return option(
        "auto",
        check=("auto", "files", "merged", "service"),
        help=f"how {what}: in files, in files that are merged first, or by the engine's own shuffle; auto decides by "
        "the runner",
        recorded=False,
    )


def overwrite_flag() -> Any:
    return switch(help="replace a finished result, which is kept until the new one is ready", recorded=False)


@dataclass(frozen=True, kw_only=True)
class ShardJob:
    """Options of `shard`: corpora to text shards."""

    input: list[str] | None = several(
        help="files, patterns or folders, with spaces or commas between them; may be repeated; .gz .bz2 .xz .zst are "
        "decompressed",
        metavar="FILE",
        recorded=False,
    )
    inputs: str | None = option(
        None,
        metavar="FILE.toml",
        help="instead of --input: several corpora, each with its own files, name, license, format and language",
        recorded=False,
    )
    exclude: list[str] | None = several(
        help="files, folders or patterns in quotes to leave out of the input, as latin.txt or 'drafts/*'",
        metavar="NAME",
    )
    corpus_name: str | None = option(
        None, help="what the corpus of --input is called, on the cards of the text, its pairs and the model"
    )
    corpus_license: str | None = option(None, help="its license, as any text, for the cards")
    corpus_url: str | None = option(None, metavar="URL", help="where it is from, for the cards")
    output: str = output_flag()
    format: Format | Literal["auto"] = option(
        "auto",
        check=("auto", *get_args(Format)),
        help="format of the input; auto detects it by name and content",
    )
    text_layout: TextLayout = option(
        "blank_line",
        check=get_args(TextLayout),
        help="what separates documents in plain text",
    )
    text_key: str = option(
        "text",
        help="the JSON key (a.b is b under a) or the column of a table that holds the text; of several with commas "
        "between, all are joined as paragraphs; of several with | between, the first that is there is read",
    )
    encoding: str = option(
        "utf-8",
        help="character encoding of text, JSON and CSV files, such as cp1252, gb18030 or utf-16; auto finds that of "
        "each file",
    )
    language: str = option(
        "en",
        help="ISO 639 code or English name, for the sentence splitter; auto finds that of each document",
    )
    languages: str | None = option(
        None,
        metavar="CODES",
        help="with --language auto: the languages to keep, with commas between; documents in others are left out "
        "(default: all)",
    )
    min_language_confidence: float | None = option(
        None,
        check=fraction,
        metavar="SHARE",
        help="with --language auto: leave out documents whose language is less sure than this; FineWeb has 0.65 "
        "(default: none)",
    )
    sentence_splitter: Splitter = option(
        "sentencex",
        check=("sentencex", "newline"),
        help="newline: the input has one sentence per line",
    )
    filters: str | Thresholds | None = option(
        None,
        help="rules for documents and lines: c4, gopher, fineweb, several with commas between, or a .toml file "
        "with thresholds (default: none)",
    )
    sample: int | None = option(
        None,
        check=positive,
        metavar="N",
        help="with --filters: make no text shards, but try the rules on N documents and write to --output one page, "
        "NAME.html, that shows what each rule removes (default: none)",
        recorded=False,
    )
    decontaminate: list[str] | None = several(
        metavar="FILE",
        help="evaluation sets, as JSON, CSV, TSV, Parquet or text, with spaces or commas between: leave out documents "
        "that share --decontaminate_words words in a row with any of their texts",
    )
    decontaminate_words: int = option(13, check=positive, metavar="N", help="see --decontaminate")
    mask_private: bool = switch(
        help="replace e-mail addresses, phone numbers and public IP addresses by ones that belong to no person",
    )
    dedup: Dedup = option(
        "none",
        check=("none", "exact", "minhash"),
        help="exact: drop documents with equal text; minhash: drop those with nearly equal text too",
    )
    drop_repeats: int | None = option(
        None,
        check=positive,
        metavar="N",
        help="remove sentences that stand in N sentences in a row whose exact text occurred earlier in the shuffled "
        "corpus; C4 has 3 (default: none)",
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
    shard_megabytes: int = option(64, check=megabytes_of_shard, help="maximum mean size of a shard, in MB of text")
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
class VocabJob:
    """Options of `vocab`: text shards to word counts to a vocabulary.

    `lowercase` and `keep_accents` are None until the language of the text has decided what the user did not.
    """

    text: str | None = folder_flag("folder written by shard; not needed with finished --counts", None)
    counts: str | None = folder_flag(
        "folder of word counts: written when --text is given and it is not finished, then read; vocabularies of "
        "other sizes and kinds can be learned from it",
        None,
    )
    output: str = output_flag()
    extend: str | None = folder_flag(
        "folder of a vocabulary or a published tokenizer to add tokens to, instead of --model and --size", None
    )
    add: int | None = option(
        None,
        check=positive,
        metavar="N",
        help="with --extend: tokens to add, those that save most tokens in the text",
    )
    model: Model = option(
        None,
        check=tuple(VOCABULARY_KINDS),
        help="BERT's kind, RoBERTa's, or ALBERT's and XLNet's (SentencePiece)",
    )
    size: int = option(None, check=positive, help="number of tokens, special tokens included")
    lowercase: bool = switch_pair(
        help="ignore case, and in wordpiece accents too without --keep_accents: the default of unigram with ALBERT's "
        "special tokens, and of wordpiece if the text's language is English or Chinese",
        off_help="keep case, and accents too in wordpiece: the default of the others",
    )
    special_tokens: Family = option(
        "albert",
        check=("albert", "xlnet"),
        help="whose special tokens a unigram vocabulary has, and whose case by default",
    )
    keep_accents: bool = switch_pair(
        help="keep accents: in unigram the default unless the text's language is English or Chinese; in wordpiece, "
        "for use with --lowercase",
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
            models = " --model is one of wordpiece, bytebpe and unigram." if "--model" in missing else ""
            raise UsageError(
                f"vocab needs {' and '.join(missing)}, or --extend and --add to extend a vocabulary.{models}"
            )

        model = given["model"]
        for name, reason in kind_of(model).idle_flags.items():
            if given.get(name):
                raise UsageError(f"--{name} changes nothing with --model {model}, {reason}. Leave it out.")
        for name, other in flags_of_others(model).items():
            if name in given:
                raise UsageError(f"--{name} applies to --model {other}, not to {model}. Leave it out.")

        if model == "wordpiece" and given.get("keep_accents") is False:
            raise UsageError(
                "--no_keep_accents changes nothing with --model wordpiece. Give --lowercase, or leave it out."
            )
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


@dataclass(frozen=True, kw_only=True)
class PairsJob:
    """Options of `pairs`: text shards and a vocabulary to pair shards."""

    text: str = folder_flag("folder written by shard")
    vocab: str = folder_flag("folder written by vocab, or a published tokenizer's folder")
    output: str = output_flag()
    objective: Objective = option(
        check=("nsp", "sop", "full_sentences", "doc_sentences"),
        help="BERT's or ALBERT's pairs, or RoBERTa's rows",
    )
    max_length: int = option(128, check=positive, help="maximum tokens per row, special tokens included")
    languages: str | None = option(
        None,
        metavar="CODES",
        help="only documents in these languages, with commas between; for text of shard --language auto (default: all)",
    )
    short_seq_prob: float = option(0.1, check=share, help="pairs: share of documents cut to shorter rows")
    dupe_factor: int = option(
        1,
        check=positive,
        help="passes over the text, each with its own random draws",
    )
    word_segmenter: Literal["none", "jieba", "sudachi", "nlpo3", "auto"] = option(
        "none",
        check=("none", "jieba", "sudachi", "nlpo3", "auto"),
        help="how text without spaces is divided into words: Chinese, Japanese, Thai, or by each document's language",
    )
    static_masks: int = option(
        0,
        check=positive,
        metavar="K",
        help="store K masks with each row (default: none; the trainer masks)",
    )
    masking: Kind = option("token", check=tuple(KINDS), help="kind of the static masks")
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

    pairs: str = folder_flag("folder written by pairs")
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
    processes: int | None = option(
        None,
        check=positive,
        metavar="N",
        help="processes on this machine (default: as many as cores and memory allow)",
        recorded=False,
    )
    overwrite: bool = overwrite_flag()
