"""Words are the library's, counts are exact, and how the text was cut into files and lots leaves no trace."""

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.runtime.staging import Staging
from pipeline.vocab import counting
from pipeline.vocab.counting import (
    BY_SOURCE,
    add_partition,
    count_runs,
    count_shard,
    encode_partitions,
    most_frequent_first,
    reported_sources,
    words_of_runs,
)
from pipeline.vocab.pretokenize import normalizer, pre_tokenizer, word_cutter
from schemas import shards


def test_words_are_bert_s_and_gpt2_s() -> None:
    cut = word_cutter("wordpiece", lowercase=True)
    # google-research/bert's published cases
    assert cut("ah\u535a\u63a8zz") == ["ah", "\u535a", "\u63a8", "zz"]
    assert cut("UNwant\u00e9d,running") == ["unwanted", ",", "running"]
    assert word_cutter("wordpiece", lowercase=False)("H\u00e9!") == ["H\u00e9", "!"]
    assert word_cutter("bytebpe", lowercase=False)("it's") == ["\u0120it", "'s"]


def test_ideographs_stand_alone_over_googles_ranges() -> None:
    cut = word_cutter("wordpiece", lowercase=True)
    for first, last in ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2B820, 0x2CEAF), (0xF900, 0xFAD9)):
        for point in (first, last):
            words = cut(f"a{chr(point)}b")
            assert (words[0], words[-1], len(words)) == ("a", "b", 3), hex(point)
    assert cut("\u3042\u304b") == ["\u3042\u304b"]  # kana is not isolated


@pytest.mark.parametrize(("model", "lowercase"), [("wordpiece", True), ("wordpiece", False), ("bytebpe", False)])
@given(run=st.one_of(st.text(), st.text(st.characters(max_codepoint=0x7F)), st.text("a'stvedlmrAZ09._-#")))
@settings(max_examples=400, deadline=None)
def test_any_run_is_cut_as_the_library_cuts_it(model, lowercase: bool, run: str) -> None:
    split = pre_tokenizer(model).pre_tokenize_str
    text = normalizer(lowercase).normalize_str(run) if model == "wordpiece" else run
    assert word_cutter(model, lowercase)(run) == [word for word, _ in split(text)]


def test_words_are_counted_as_often_as_they_occur() -> None:
    runs = count_runs([["The cat, the dog."], ["THE end."]])
    counts = words_of_runs(runs, word_cutter("wordpiece", lowercase=True))
    assert counts == {"the": 3, "cat": 1, ",": 1, "dog": 1, ".": 2, "end": 1}


def text_table(rows: list[tuple[str, list[str]]]) -> pa.Table:
    documents = [{"document": i, "source": source, "sentences": said} for i, (source, said) in enumerate(rows)]
    return pa.Table.from_pylist(documents, shards.TEXT_SCHEMA)


ROWS = st.lists(st.tuples(st.sampled_from("xyz"), st.lists(st.text("ab '.", min_size=1), min_size=1)), max_size=9)


@given(files=st.lists(ROWS, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_files_add_up_by_source(tmp_path_factory: pytest.TempPathFactory, files: list) -> None:
    staging = Staging(str(tmp_path_factory.mktemp("counts")), "job")
    cut = word_cutter("wordpiece", lowercase=True)
    expected = Counter()
    for i, rows in enumerate(files):
        staging.put(f"{i}.arrow", encode_partitions(count_shard(text_table(rows), ["x", "y", "z"], cut)))
        for source, sentences in rows:
            words = words_of_runs(count_runs([sentences]), cut)
            expected.update({(word, "xyz".index(source)): n for word, n in words.items()})
    names = [f"{i}.arrow" for i in range(len(files))]
    added = pa.concat_tables(add_partition(i, names, staging) for i in range(counting.PARTITIONS))
    assert {(row["word"], row["source"]): row["count"] for row in added.to_pylist()} == expected
    totals = [(row["count"], row["word"]) for row in most_frequent_first([added]).to_pylist()]
    assert totals == sorted(totals, key=lambda pair: (-pair[0], pair[1]))


def test_rare_sources_are_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "MAX_SOURCES", 2)
    sources = reported_sources({"a": 5, "b": 1, "c": 9, "d": 1})
    assert sources == ["a", "c", counting.OTHERS]
    table = text_table([("a", ["one"]), ("b", ["two"]), ("d", ["two"]), ("c", ["one"])])
    found = pa.Table.from_batches([count_shard(table, sources, word_cutter("wordpiece", True))], BY_SOURCE).to_pylist()
    assert sorted((row["word"], row["source"], row["count"]) for row in found) == [
        ("one", 0, 1),
        ("one", 1, 1),
        ("two", 2, 2),
    ]
