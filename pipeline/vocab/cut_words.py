"""Cuts runs of non-spaces into words by the rules of any kind of vocabulary (kinds.py).

Array operations cut most runs (pipeline/words/cut.py), and the tokenizers library all others, one at a time. Property
tests check that both follow the same rules.

Shape suffixes: N runs, B bytes of all runs, W words of all runs, P parts of runs. N1 has one element more than N.
"""

from __future__ import annotations

import json
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer, normalizers

from pipeline.vocab.kinds import maker_of
from pipeline.words.arrow import Bools, Ints, bytes_of, slices_of
from pipeline.words.cut import CutStrings, cut_where, isolate_ideographs
from pipeline.words.rules import Cut, Rules, case_of, text_cutter
from schemas.errors import DataError
from schemas.ragged import offsets_of, places_of_ranges
from schemas.vocabulary import TOKENIZER_FILE
from schemas.vocabulary_kinds import Model, kind_of

CUT_AT_ONCE = 8 << 20  # bytes; more at once would take ten times their memory

_PROBES = ["It's", "Caf\u00e9,", "\u4e2d\u6587", "x\u00a03.14", "don't--stop_2", "two words"]


def cut_runs(runs: pa.StringArray, rules: Rules) -> tuple[pa.StringArray, Ints]:
    """Cut runs, which must not be empty or contain spaces, into words by the rules of vocabularies trained here.

    Returns (W words in any order, (W,) the number of each word's run).
    """
    is_plain_N = are_plain(runs, rules.model)
    plain = cut_plain(runs.filter(pa.array(is_plain_N)), rules)
    others = _cut_by_library(runs.filter(pa.array(~is_plain_N)), rules)

    run_of_words = [
        np.repeat(np.flatnonzero(is_plain_N), np.diff(plain.offsets_N1)),
        np.repeat(np.flatnonzero(~is_plain_N), np.diff(others.offsets_N1)),
    ]
    return pa.concat_arrays([plain.parts, others.parts]), np.concatenate(run_of_words)


def are_plain(runs: pa.StringArray, model: Model, only_ascii: bool = False) -> Bools:
    """Return (N,) bool: true for runs that are not empty and that `cut_plain` can cut; `only_ascii`: and are ASCII."""
    text_B, offsets_N1 = bytes_of(runs)
    maker = maker_of(model)
    find = maker.is_strange if only_ascii or maker.is_unknown is None else maker.is_unknown
    is_strange_B = find(text_B)

    is_plain_N = np.diff(offsets_N1) > 0
    is_plain_N[is_plain_N] = ~np.logical_or.reduceat(is_strange_B, offsets_N1[:-1][is_plain_N])
    return is_plain_N


def cut_plain(runs: pa.StringArray, rules: Rules) -> CutStrings:
    if rules.lowercase:
        runs = pc.ascii_lower(runs)  # type: ignore[attr-defined]

    words = [pa.array([], pa.string())]
    counts = [np.zeros(0, np.int64)]
    cut = maker_of(rules.model).cut
    for start, stop in slices_of(runs, CUT_AT_ONCE):
        of_slice = cut(*bytes_of(runs.slice(start, stop - start)))
        words.append(of_slice.parts)
        counts.append(np.diff(of_slice.offsets_N1))
    return CutStrings(pa.concat_arrays(words), offsets_of(np.concatenate(counts)))


def _cut_by_library(runs: pa.StringArray, rules: Rules) -> CutStrings:
    """Cut N runs into words by the tokenizers library, each distinct one once.

    In Chinese these would be whole clauses, which hardly ever repeat, and BERT's rules make every ideograph a word
    before they look at anything else. So such runs are cut at ideographs first.
    """
    text_B, offsets_N1 = bytes_of(runs)
    begins_B = np.zeros(len(text_B), dtype=bool)
    if maker_of(rules.model).isolates_ideographs:
        isolate_ideographs(begins_B, text_B)
    parts = cut_where(begins_B, text_B, offsets_N1)

    encoded = parts.parts.dictionary_encode()
    cut = library_cutter(rules.model, rules.lowercase)
    words_of_part = [cut(part) for part in encoded.dictionary.to_pylist()]
    words = pa.array(chain.from_iterable(words_of_part), pa.string())
    counts = np.fromiter(map(len, words_of_part), np.int64, len(words_of_part))

    # From the words of distinct parts to those of all parts, in order.
    part_P = encoded.indices.to_numpy()
    counts_P = counts[part_P]
    places_W = places_of_ranges(offsets_of(counts)[part_P], counts_P)
    return CutStrings(words.take(pa.array(places_W)), offsets_of(counts_P)[parts.offsets_N1])


def library_cutter(model: Model, lowercase: bool, keep_accents: bool = False) -> Cut:
    """Return a function from a run of non-spaces to its words, by the rules of vocabularies trained here.

    Example: `"It's"` -> `["it", "'", "s"]` in BERT.
    """
    maker = maker_of(model)
    split = maker.pre_tokenizer().pre_tokenize_str
    steps: Any = maker.count_steps(lowercase, keep_accents)
    normalize = normalizers.Sequence(steps).normalize_str if steps else str
    return lambda run: [word for word, _ in split(normalize(run))]


def check_rules(tokenizer_json: bytes, model: Model, path: str) -> None:
    """Raise DataError if a published tokenizer is damaged or cuts plain text by other rules than those of its model.

    The rules are BERT's or GPT-2's or, in Unigram, the tokenizer's own, applied to each run of non-spaces separately.
    """
    try:
        tokenizer: Any = Tokenizer.from_str(tokenizer_json.decode())
    except Exception as error:  # the library raises no narrower class
        raise DataError(
            f"{path}: the tokenizers library cannot read {TOKENIZER_FILE} ({error}). Copy it again, or make a "
            "vocabulary with `clozeline vocab`."
        ) from error

    cut_text = text_cutter(tokenizer)
    cut_run = cut_text
    if not kind_of(model).rules_vary:
        cut_run = library_cutter(model, *case_of(json.loads(tokenizer_json)))

    for probe in _PROBES:
        found = cut_text(f" {probe}" if kind_of(model).is_byte_level else probe)
        expected = [word for run in probe.split(" ") for word in cut_run(run)]
        if found != expected:
            raise DataError(
                f"{path}: {TOKENIZER_FILE} cuts {probe!r} into {found}, which are not {maker_of(model).whose_rules} "
                f"words, {expected}. Use a vocabulary with BERT's, RoBERTa's or ALBERT's rules, or make one with "
                "`clozeline vocab`."
            )
