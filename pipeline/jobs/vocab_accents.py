"""Whether a vocabulary ignores accents, and how many letters of its text that would change.

"Ignoring accents" decomposes characters and removes all combining marks. Published English and Chinese models do so,
and in their languages it loses next to nothing. In others the marks are letters: Hindi and Thai lose their vowels,
Japanese half of its kana, Vietnamese its tones, and BERT's rules also take Korean syllables apart.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
from tokenizers import normalizers

from pipeline.options import VocabJob
from pipeline.shard.detection import UNKNOWN
from pipeline.shard.languages import Language
from pipeline.words.rules import Rules, fold_steps, normalizer
from schemas import shards, storage
from schemas.manifest import Manifest, read_shards_of_part
from schemas.shards import read_shard_bytes
from schemas.vocabulary_kinds import kind_of

UNACCENTED = ("en", "zh")
"""Languages whose text ignores accents by default, as the published models of these languages do."""

CASED = Rules("wordpiece", lowercase=False)
"""The rules whose counts have a text's characters as they are."""

MAX_CHANGED = 0.01  # share of a text's letters; more is a warning
SAMPLED_CHARACTERS = 1_000_000
SAMPLED_WORDS = 10_000  # of each table of counts
EXAMPLES = 5

VARIATION_SELECTORS = "".join(map(chr, range(0xFE00, 0xFE10)))
"""Combining marks that choose the look of an emoji, and are part of no letter."""


def with_case_of(job: VocabJob, language: Language) -> VocabJob:
    """Return the job with the case and accents that its language has by default, where the user chose none."""
    kind = kind_of(job.model)
    is_unaccented = language.code in UNACCENTED
    lowercase = kind.specials_of(job.special_tokens).lowercase if job.lowercase is None else job.lowercase
    keep_accents = job.keep_accents
    if keep_accents is None:
        keep_accents = kind.accents_flag == "keep_accents" and not is_unaccented
    return replace(job, lowercase=is_unaccented if lowercase is None else lowercase, keep_accents=keep_accents)


def default_note(given: VocabJob, job: VocabJob, language: Language) -> str:
    """Return what the language decided, if English would have decided otherwise; else an empty note."""
    decides = kind_of(job.model).accents_flag
    if language.code in UNACCENTED or not decides or getattr(given, decides) is not None:
        return ""
    kept, remedy = "accents", "--no_keep_accents ignores them."
    if decides == "lowercase":
        kept, remedy = "case and accents", "--lowercase ignores both, and --lowercase --keep_accents case alone."
    known = f"in {language.title}, not in" if language.code != UNKNOWN else "not known to be in"
    return f"Note: {kept} are kept, because the text is {known} English or Chinese. {remedy}"


def accents_warning(job: VocabJob, source: Manifest) -> str:
    """Return which share of the letters ignoring accents changes, if it is more than a little; else an empty warning.

    source: the manifest of the job's text or counts, of which about a million characters are read.
    """
    decides = kind_of(job.model).accents_flag
    if job.extend is None and decides == "keep_accents" and not job.keep_accents:
        steps = fold_steps(lowercase=False, keep_accents=False)
        fold = normalizers.Sequence(steps).normalize_str
        remedy = "Give --keep_accents to keep them."
    elif decides == "lowercase" and job.lowercase and not job.keep_accents:
        fold = normalizer(lowercase=True).normalize_str
        remedy = "Extend a vocabulary that keeps them."
        if job.extend is None:
            remedy = "Give --no_lowercase to keep them, or --keep_accents to ignore case alone."
    else:
        return ""

    characters = _count_characters(job, source)
    letters = Counter({character: count for character, count in characters.items() if _is_letter(character)})
    changed = {letter: count for letter, count in letters.items() if _is_changed(letter, fold)}
    share = sum(changed.values()) / max(letters.total(), 1)
    if share <= MAX_CHANGED:
        return ""
    shown = sorted(changed, key=lambda letter: (-changed[letter], letter))[:EXAMPLES]
    examples = ", ".join(_shown(letter) for letter in shown)
    return (
        f"ignoring accents removes marks from {share:.1%} of the letters of this text or takes them apart ({examples} "
        f"most often), so that different words become equal. {remedy}"
    )


def _is_changed(letter: str, fold: Callable[[str], str]) -> bool:
    same = {letter.lower(), unicodedata.normalize("NFKC", letter).lower()}
    return fold(letter).strip().lower() not in same


def _shown(letter: str) -> str:
    return f"\u25cc{letter}" if unicodedata.category(letter) == "Mn" else letter  # a mark on a circle


def _is_letter(character: str) -> bool:
    """Whether a character is a letter, or a combining mark that may be a part of one."""
    is_mark = unicodedata.category(character) == "Mn" and character not in VARIATION_SELECTORS
    return character.isalpha() or is_mark


def _count_characters(job: VocabJob, source: Manifest) -> Counter[str]:
    found: Counter[str] = Counter()
    left = SAMPLED_CHARACTERS
    for text, count in _texts(job, source):
        for character in text:
            found[character] += count
        left -= len(text)
        if left <= 0:
            break
    return found


def _texts(job: VocabJob, source: Manifest) -> Iterator[tuple[str, int]]:
    """Yield sentences of the text, or its words as they are, each with the number of times that it counts."""
    if source.kind == "text":
        for table in _tables(str(job.text), source, shards.schema_of_text(source), "text"):
            for batch in table.to_batches():
                for sentence in batch["sentences"].flatten():
                    yield sentence.as_py(), 1
        return

    for table in _tables(str(job.counts), source, shards.COUNTS_BY_SOURCE_SCHEMA, CASED.name):
        # Words are in order, so those of one script may stand before those of all others.
        rows = range(0, table.num_rows, -(-table.num_rows // SAMPLED_WORDS) or 1)
        sampled = table.take(pa.array(rows, pa.int64()))
        yield from zip(sampled["word"].to_pylist(), sampled["count"].to_pylist(), strict=True)


def _tables(folder: str, source: Manifest, schema: pa.Schema, prefix: str) -> Iterator[pa.Table]:
    """Yield the shards of a folder whose names begin with `prefix`, one by one, as they are needed."""
    for part in range(max(1, len(source.parts_of("shards")))):
        _, entries = read_shards_of_part(folder, source.kind, source.fingerprint, part)
        for shard in entries:
            if shard.path.startswith(f"{prefix}-"):
                data = read_shard_bytes(folder, shard)
                yield shards.decode_table(data, storage.join(folder, shard.path), schema)
