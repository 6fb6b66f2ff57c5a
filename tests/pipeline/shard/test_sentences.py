import itertools
import re
from collections import Counter

import pyarrow as pa
import sentencex
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard.cleaning import clean
from pipeline.shard.sentence_column import SentenceColumn
from pipeline.shard.sentences import paragraphs, split_ideographic, split_sentences
from schemas.shards import TEXT_SCHEMA


def test_wrapped_lines_are_joined_and_headings_are_not() -> None:
    text = (
        "Heading\n"
        "This is a paragraph that somebody wrapped at forty\n"
        "characters or so, as one did. It has two\n"
        "sentences.\n"
        "\n"
        "Another one."
    )
    assert split_sentences(text, "en", "sentencex") == [
        "Heading",
        "This is a paragraph that somebody wrapped at forty characters or so, as one did.",
        "It has two sentences.",
        "Another one.",
    ]


def test_one_paragraph_a_line_stays_apart() -> None:
    long = "This line is a whole paragraph of the kind that the web has, much longer than anyone wraps. " * 3
    assert list(paragraphs(f"A title\n{long}\nShort line\n{long}")) == ["A title", long, "Short line", long]


def test_chinese_lines_are_not_joined() -> None:
    text = "他说：“你好！”然后走了。\n真的？是的……好吧。"
    assert split_sentences(text, "zh", "sentencex") == ["他说：“你好！”", "然后走了。", "真的？", "是的……好吧。"]


def test_ideographic_full_stops_end_a_sentence_before_anything() -> None:
    assert split_sentences("到医院。108路车来了！！”PS版？", "zh", "sentencex") == [
        "到医院。",
        "108路车来了！！”",
        "PS版？",
    ]
    assert split_sentences("He said 你好。Then he left.", "en", "sentencex") == ["He said 你好。", "Then he left."]
    assert split_sentences("「行く。」と言った。3人いた。", "ja", "sentencex")[-1] == "3人いた。"


def test_newline_trusts_the_corpus() -> None:
    assert split_sentences("One. Two.\n\nthree  four\n", "en", "newline") == ["One. Two.", "three four"]


@given(st.text())
def test_no_character_is_lost_but_spaces(text: str) -> None:
    cleaned = clean(text, Counter())
    found = split_sentences(cleaned, "en", "sentencex")
    assert "".join("".join(found).split()) == "".join(cleaned.split())
    assert all(sentence == " ".join(sentence.split()) and sentence for sentence in found)


def plain_unwrap(lines: list[str]) -> list[str]:
    """Joins lines one by one; a line break is a wrap if the next word would not have fitted on the line."""
    width = max(map(len, lines))
    joined = [lines[0].strip()]
    for previous, line in itertools.pairwise(lines):
        text = line.strip()
        first_word = text.split(" ")[0]
        fits = len(previous.rstrip()) + 1 + len(first_word) <= width
        if text and " " in previous.strip() and (text[0].islower() or not fits):
            joined[-1] += " " + text
        else:
            joined.append(text)
    return joined


WORDS = st.lists(st.sampled_from(["a", "B", " ", "word ", "Word "]), max_size=8)
LINES = st.lists(WORDS.map("".join), min_size=2, max_size=6)


@given(LINES)
@settings(deadline=None)
def test_lines_are_joined_as_by_a_plain_loop(lines: list[str]) -> None:
    lines = [line[:120] or "x" for line in lines]  # an empty line would end the block
    assert paragraphs("\n".join(lines)) == plain_unwrap(lines)


WITH_FULL_STOPS = st.text(
    st.sampled_from("\u3002\uff01\uff1f!?\u2026\u201d\u300d\uff09\uff0c,:\u4e2da1 ."), max_size=20
)


@given(st.lists(WITH_FULL_STOPS, max_size=4))
@settings(deadline=None)
def test_ideographic_cuts_are_those_of_each_sentence(sentences: list[str]) -> None:
    end = re.compile("[!?…]*[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")
    expected = []
    for sentence in sentences:
        start = 0
        for match in end.finditer(sentence):
            expected.append(sentence[start : match.end()])
            start = match.end()
        expected.append(sentence[start:])

    found = split_ideographic(sentences)
    assert [part for part in found if part] == [part for part in expected if part]


@given(st.lists(st.sampled_from(["One. ", "\u4f60\u597d\u3002", "two", "\n", "\n\n", "  ", "\u201d"])))
@settings(deadline=None)
def test_no_sentence_of_the_library_has_a_line_break_inside(parts: list[str]) -> None:
    """Sentences are joined by line breaks to cut them all at once."""
    joined = "\n\n".join(paragraphs("".join(parts)))
    assert not any("\n" in sentence.strip() for sentence in sentencex.segment("zh", joined))  # type: ignore[attr-defined]


def test_a_column_of_sentences_is_the_list_of_documents() -> None:
    documents = [[f"Sentence {i}.", "\u4e2d" * (i % 5 + 1)] for i in range(700)]
    column = SentenceColumn()
    assert column.to_arrow().to_pylist() == list(column) == []

    for document in documents:
        column.append(document, text_bytes=5000)  # so that there are several chunks
    assert list(column) == documents
    assert column.to_arrow().equals(pa.array(documents, TEXT_SCHEMA.field("sentences").type))
    assert list(column) == documents
