"""Words are the library's, counts are exact, and how the text was cut into files and lots leaves no trace."""

import tracemalloc
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.vocab import counting, cut_words
from pipeline.vocab.counting import (
    BY_RULES,
    add_partition,
    count_texts,
    most_frequent_first,
    reported_sources,
    sum_counts,
)
from pipeline.vocab.cut_words import cut_runs, library_cutter
from pipeline.words import arrow
from pipeline.words.arrow import hashes_of
from pipeline.words.cut import DIGIT, LETTER, OTHER, classes_of
from pipeline.words.rules import ALL_RULES, Rules, gpt2_pre_tokenizer
from schemas import shards

ANY_RUN = st.one_of(
    st.text(),
    st.text(st.characters(max_codepoint=0x7F)),
    st.text("a'stvedlmrAZ09._-#"),
    st.text("a'stvelr\u00e9\u4e2d\u3002"),
    st.text("a's1\u4e00\u9fff\u4dbf\ua000\u3042\u0301\uff0c\uff11\u3000\U0002b820\uac00\u1112\u0430"),
)


def test_words_are_bert_s_and_gpt2_s() -> None:
    cut = library_cutter("wordpiece", lowercase=True)
    # google-research/bert's published cases
    assert cut("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    assert cut("UNwant\u00e9d,running") == ["unwanted", ",", "running"]
    assert library_cutter("wordpiece", lowercase=False)("H\u00e9!") == ["H\u00e9", "!"]
    assert library_cutter("bytebpe", lowercase=False)("it's") == ["\u0120it", "'s"]


def test_ideographs_stand_alone_over_googles_ranges() -> None:
    cut = library_cutter("wordpiece", lowercase=True)
    for first, last in ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2B820, 0x2CEAF), (0xF900, 0xFAD9)):
        for point in (first, last):
            words = cut(f"a{chr(point)}b")
            assert (words[0], words[-1], len(words)) == ("a", "b", 3), hex(point)
    assert cut("\u3042\u304b") == ["\u3042\u304b"]  # kana is not isolated


@pytest.mark.parametrize("rules", ALL_RULES, ids=lambda rules: rules.name)
@given(texts=st.lists(ANY_RUN, max_size=12))
@settings(max_examples=300)
def test_many_runs_are_cut_as_each_of_them_is(rules: Rules, texts: list[str]) -> None:
    each = [run for text in texts if (run := text.replace(" ", ""))]
    cut = library_cutter(rules.model, rules.lowercase)

    words, run_of_word = cut_runs(pa.array(each, pa.string()), rules)

    expected = Counter((i, word) for i, run in enumerate(each) for word in cut(run))
    assert Counter(zip(run_of_word.tolist(), words.to_pylist(), strict=True)) == expected


def text_table(rows: list[tuple[str, list[str]]]) -> pa.Table:
    documents = [{"document": i, "source": source, "sentences": said} for i, (source, said) in enumerate(rows)]
    return pa.Table.from_pylist(documents, shards.TEXT_SCHEMA)


def plain_counts(files: Iterable[list[tuple[str, list[str]]]], rules: Rules, sources: str) -> Counter:
    """(word, source) -> count, a word at a time."""
    cut = library_cutter(rules.model, rules.lowercase)
    counts: Counter = Counter()
    for rows in files:
        for source, sentences in rows:
            words = [word for sentence in sentences for run in sentence.split(" ") for word in cut(run)]
            counts.update((word, sources.index(source)) for word in words)
    return counts


def as_counter(added: pa.Table) -> Counter:
    return Counter({(row["word"], row["source"]): row["count"] for row in added.to_pylist()})


SENTENCE = st.text("ab '.\u00e9\u4e2d", min_size=1)
ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.lists(SENTENCE, min_size=1)), max_size=9)


@given(
    files=st.lists(ROWS, min_size=1, max_size=4),
    rows_at_once=st.sampled_from([1, 3, 128]),
    counted_at_once=st.sampled_from([1, 20, 1 << 20]),
    run_bytes=st.sampled_from([0, 100, 1 << 20]),
    slice_bytes=st.sampled_from([20, 1 << 20]),
)
@settings(max_examples=150)
def test_shards_add_up_by_source_and_rules(
    files: list, rows_at_once: int, counted_at_once: int, run_bytes: int, slice_bytes: int
) -> None:
    """However much text is cut, hashed or counted at once, and however often counts leave a worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting, "ROWS_AT_ONCE", rows_at_once)
        patch.setattr(counting, "COUNTED_AT_ONCE", counted_at_once)
        patch.setattr(counting, "MAX_RUN_BYTES", run_bytes)
        patch.setattr(arrow, "HASHED_AT_ONCE", slice_bytes)
        patch.setattr(cut_words, "CUT_AT_ONCE", slice_bytes)
        batches = list(count_texts(map(text_table, files), ["x", "y", "z"], ALL_RULES))

    counts = pa.Table.from_batches(batches, BY_RULES)
    for number, rules in enumerate(ALL_RULES):
        added = add_partition(counts, number)
        assert as_counter(added) == plain_counts(files, rules, "xyz")
        assert added.num_rows == 0 or added["word"].to_pylist() == sorted(added["word"].to_pylist())


def test_slices_of_columns_are_counted_as_copies_are() -> None:
    rows = [("x", ["one two", "three"]), ("x", ["four  five "]), ("x", ["six"])]
    whole = text_table(rows)
    for start, end in ((0, 3), (1, 3), (1, 2), (2, 2)):
        part = whole.slice(start, end - start)
        batches = list(count_texts([part], ["x"], ALL_RULES))
        added = add_partition(pa.Table.from_batches(batches, BY_RULES), 0)
        assert as_counter(added) == plain_counts([rows[start:end]], ALL_RULES[0], "x")


def test_the_most_frequent_word_comes_first_and_ties_are_sorted() -> None:
    text = text_table([("x", ["b b a a c", "d d d"])])
    added = add_partition(pa.Table.from_batches(count_texts([text], ["x"], ALL_RULES)), 0)
    listed = most_frequent_first(sum_counts(added, ["word"]))
    assert listed["word"].to_pylist() == ["d", "a", "b", "c"]


@given(words=st.lists(st.text(max_size=40), max_size=30))
def test_equal_words_have_equal_keys_wherever_they_lie(words: list[str]) -> None:
    together = hashes_of(pa.array(words, pa.string()))
    alone = [int(hashes_of(pa.array(["x", word, "y"]).slice(1, 1))[0]) for word in words]
    assert together.tolist() == alone


def test_memory_of_hashing_is_bounded() -> None:
    """Bytes become 64-bit numbers, of a part of the words at a time."""
    words = pa.array([f"{number:020d}" for number in range(200_000)])  # 4 MB
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "HASHED_AT_ONCE", 1 << 16)
        tracemalloc.start()
        hashes_of(words)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 12e6  # 1.6 MB of hashes and their copies; all at once would take over 64 MB


def test_keys_spread_words_evenly() -> None:
    keys = hashes_of(pa.array([f"word{i}" for i in range(16_000)]))
    assert len(set(keys.tolist())) == 16_000
    in_bucket = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert in_bucket.min() > 800 and in_bucket.max() < 1200


def test_rare_sources_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_SOURCES", 2)
    sources = reported_sources({"a": 5, "b": 1, "c": 9, "d": 1})
    assert sources == ["a", "c", counting.OTHERS]
    table = text_table([("a", ["one"]), ("b", ["two"]), ("d", ["two"]), ("c", ["one"])])
    added = add_partition(pa.Table.from_batches(count_texts([table], sources, ALL_RULES)), 0)
    assert as_counter(added) == {("one", 0): 1, ("one", 1): 1, ("two", 2): 2}


def test_classes_of_characters_are_those_of_the_library() -> None:
    """A word of GPT-2's ends where the class changes, so all characters of a class together are one word."""
    characters = [chr(point) for point in range(0x80, 1 << 16) if not 0xD800 <= point < 0xE000]
    encoded = [character.encode() for character in characters]
    of_each_byte = classes_of(np.frombuffer(b"".join(encoded), np.uint8))
    ends = np.cumsum([len(data) for data in encoded])
    of_last_byte = of_each_byte[ends - 1]
    assert (of_each_byte == np.repeat(of_last_byte, np.diff(ends, prepend=0))).all()

    split = gpt2_pre_tokenizer().pre_tokenize_str
    for kind, plain, least in ((LETTER, "a", 30_000), (DIGIT, "1", 20), (OTHER, "-", 150)):
        found = [characters[place] for place in np.flatnonzero(of_last_byte == kind)]
        assert len(found) > least
        assert len(split("".join([plain, *found, plain]))) == 1
