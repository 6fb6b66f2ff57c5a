"""The closing lines of `shard`, `vocab` and `pairs`: what was left out, cut or cleaned, and how much is unknown."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from pipeline.commit.reports import Report
from pipeline.readers.encodings import UTF8
from pipeline.readers.formats import advice_on
from pipeline.readers.record import place_in_words
from pipeline.shard.cleaning import UNDECODABLE
from pipeline.shard.detection import LEAST_CONFIDENCE, UNKNOWN
from pipeline.shard.wrapped_lines import HYPHENS_KEPT, LINES_JOINED
from schemas import storage
from schemas.errors import ClozelineError
from schemas.manifest import Manifest, read_manifest
from schemas.terminal import counted, one_line

LISTED_SOURCES = 3
LISTED_LANGUAGES = 10
SEPARATE_LANGUAGES = 5  # that were left out; more share a line
OTHER_LANGUAGE = "language "  # how the reasons of --languages begin

_HINTS = {
    LINES_JOINED: " (they looked wrapped; --sentence_splitter newline keeps lines apart)",
    HYPHENS_KEPT: " (the document does not have the word in one piece elsewhere)",
}
"""What is said behind the number of changes by a rule."""
_OLDER_DAMAGE = {UNDECODABLE: " (U+FFFD in the files, where an earlier program could not decode a byte)"}
"""The same where all bytes could be decoded."""

MAX_UNKNOWN = 0.01
"""Share of words, of tokens or of characters above which [UNK] is a warning."""

WARNING = "much of this text becomes [UNK], which teaches a model nothing: "


# ---- The ledger ----


def ledger_lines(manifest: Manifest) -> list[str]:
    """Return a line for each reason in the ledger, however many sources and languages there are.

    Example: `"1,234 x empty document (wiki 1,000, web 200, news 30 and 8 further sources)"`.
    """
    reasons: dict[str, Counter[str]] = {}
    for entry in manifest.ledger:
        reasons.setdefault(entry.reason, Counter())[entry.source] += entry.count

    languages = [reason for reason in reasons if reason.startswith(OTHER_LANGUAGE)]
    together = []
    if len(languages) > SEPARATE_LANGUAGES:
        counts = Counter({name.removeprefix(OTHER_LANGUAGE): reasons.pop(name).total() for name in languages})
        together = [f"{counts.total():,} x document in another language ({_list_largest(counts, 'language')})"]
    return [
        f"{counts.total():,} x {reason} ({_list_largest(counts, 'source')}){advice_on(reason)}"
        for reason, counts in reasons.items()
    ] + together


def _list_largest(counts: Counter[str], noun: str) -> str:
    """Return the largest of the sources or languages with their counts, or a single one without its count."""
    largest_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if len(largest_first) == 1:
        return largest_first[0][0]

    listed = ", ".join(f"{name} {count:,}" for name, count in largest_first[:LISTED_SOURCES])
    further = len(largest_first) - LISTED_SOURCES
    return listed if further <= 0 else f"{listed} and {counted(further, f'further {noun}')}"


# ---- Text ----


def summary_lines(manifest: Manifest) -> list[str]:
    """Return lines about a text folder's ledger, languages and cleaning; none if everything was kept unchanged."""
    from pipeline.readers.table import remedy_of  # loads the readers, which `inspect` does not need

    lines = [f"  left out: {line}" for line in ledger_lines(manifest)]
    remedies = dict.fromkeys(remedy_of(entry.reason) for entry in manifest.ledger)
    lines += [f"  {sentence}" for sentence in remedies if sentence]

    found = Counter(manifest.statistics.get("documents_by_language", {}))
    if found:
        most = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:LISTED_LANGUAGES]
        listed = ", ".join(f"{code} {count:,}" for code, count in most)
        further = f" and {len(found) - len(most):,} further" if len(found) > len(most) else ""
        lines.append(f"  documents by language: {listed}{further}")
    if UNKNOWN in found:
        lines.append(
            f"  {UNKNOWN}: those whose language was not sure (below {LEAST_CONFIDENCE}), with the rules of English. If "
            "they are in one, name it with --language."
        )

    lines += _encoding_lines(manifest.statistics.get("encodings", {}))
    cleaning = manifest.statistics["cleaning"]
    if cleaning:
        hints = _HINTS if manifest.statistics.get("undecodable") else _HINTS | _OLDER_DAMAGE
        changes = ", ".join(f"{rule} {count:,}{hints.get(rule, '')}" for rule, count in cleaning.items())
        lines.append(f"  cleaned: {changes}")
    return lines


def _encoding_lines(encodings: dict[str, Report]) -> list[str]:
    others = {name: found for name, found in encodings.items() if name != UTF8}
    lines = []
    for name, found in sorted(others.items(), key=lambda item: (-item[1]["files"], item[0])):
        files = "1 file is" if found["files"] == 1 else f"{found['files']:,} files are"
        read = "was read" if found["files"] == 1 else "were read"
        first = one_line(found["first"])
        lines.append(f"  {files} not UTF-8 and {read} as {name} (the first: {first})")
    if lines:
        lines.append("  Encodings are guesses, which may be wrong: `inspect` shows the text.")
    return lines


def warning_lines(manifest: Manifest) -> list[str]:
    """Return one line for each sign that the text may not be what the user believes."""
    from pipeline.readers.undecodable import OWN_ENCODING  # as in `summary_lines`

    warnings = []

    paragraphs = manifest.statistics.get("paragraphs")
    if paragraphs:
        documents, files = paragraphs["documents"], paragraphs["files"]
        each = f", {documents / files:,.0f} a file," if files > 1 else ""
        warnings.append(
            f"the plain text of {counted(files, 'file')} is {documents:,} documents{each} of "
            f"{paragraphs['bytes'] / documents:,.0f} bytes on average, because a blank line ends a document. "
            "If these are paragraphs, give --text_layout file, which makes each file a document."
        )

    undecodable = manifest.statistics.get("undecodable")
    if undecodable:
        first = undecodable["most"][0]
        place = place_in_words(first["first_place"], first)
        warning = f"{undecodable['count']:,} undecodable bytes were removed, the first at {place} of {first['path']}."
        # Parquet and Arrow have no other encoding, and pages name theirs.
        if "unit" not in first and first["encoding"] != OWN_ENCODING:
            warning += " If it is in another encoding, name it with --encoding."
        warnings.append(warning)

    unbroken = manifest.statistics.get("unbroken_documents")
    if unbroken:
        first = unbroken["first"]
        place = place_in_words(first["place"], first)
        warnings.append(
            f"{counted(unbroken['count'], 'document')} {'has' if unbroken['count'] == 1 else 'have'} many lines and no "
            "blank line, the first with "
            f"{first['lines']:,} lines at {place} of {first['path']}. If every line is a document, "
            "give --text_layout line."
        )
    return warnings


# ---- Unknown words ----


def coverage_lines(manifest: Manifest) -> list[str]:
    """Return a line with the coverage of words and the share of [UNK] among the tokens.

    manifest: of a vocabulary, or of pairs. A word is covered if no token of it is [UNK].
    """
    counts = _counts(manifest)
    coverage = 1 - counts.unknown_words / max(counts.words, 1)
    unknown_share = counts.unknown_tokens / max(counts.tokens, 1)
    words = f"coverage {coverage:.3%} of {counted(counts.words, 'word')}"
    return [f"  {words}; {unknown_share:.3%} of {counted(counts.tokens, 'token')} are [UNK]"]


def vocabulary_warning(vocabulary: Manifest) -> str:
    """Return why much of a vocabulary's own text becomes [UNK], and what to do; empty if little does."""
    return WARNING + _reason(vocabulary) if _loses_much(vocabulary) else ""


def pairs_warning(pairs: Manifest, vocabulary_folder: str) -> str:
    """Return why much of the pairs' text becomes [UNK], and what to do; empty if little does."""
    try:
        vocabulary = read_manifest(vocabulary_folder, "vocab")
    except ClozelineError:  # a published tokenizer has no manifest
        vocabulary = None

    # What is unknown in the vocabulary's own text is unknown here only if this is that text.
    if vocabulary is not None and vocabulary.inputs[0].fingerprint == pairs.inputs[0].fingerprint:
        return vocabulary_warning(vocabulary)
    if not _loses_much(pairs):
        return ""
    if vocabulary is not None and pairs.inputs[0].path == f"{vocabulary.inputs[0].path}_heldout":
        return (
            f"{WARNING}the held-out documents have characters that those of the vocabulary lack. --model bytebpe knows "
            "every character."
        )
    return (
        f"{WARNING}the vocabulary in {storage.printable(vocabulary_folder)} was made from other text. Make one "
        "from this text with `vocab`; --model unigram and --model bytebpe know words of any length, and bytebpe every "
        "character."
    )


class _Counts(NamedTuple):
    words: int
    unknown_words: int
    tokens: int
    unknown_tokens: int


def _counts(manifest: Manifest) -> _Counts:
    statistics = manifest.statistics
    if manifest.kind == "pairs":
        words, tokens = statistics["words"], manifest.totals["tokens"]
    else:
        words = manifest.totals["words"]
        tokens = sum(round(source["words"] * source["tokens_per_word"]) for source in statistics["by_source"].values())
    return _Counts(words, statistics["unknown_words"], tokens, statistics["unknown_tokens"])


def _loses_much(manifest: Manifest) -> bool:
    counts = _counts(manifest)
    return (
        counts.unknown_words > MAX_UNKNOWN * counts.words
        or counts.unknown_tokens > MAX_UNKNOWN * counts.tokens
        or manifest.statistics.get("unknown_character_share", 0) > MAX_UNKNOWN  # few words may hold much of the text
    )


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
