import re
from collections import Counter

import pyarrow as pa
import pytest
import sentencex
from hypothesis import assume, example, given
from hypothesis import strategies as st

from pipeline.shard.cleaning import clean
from pipeline.shard.run_buffer import SentenceColumn
from pipeline.shard.sentences import (
    MAX_QUOTED,
    cut_after_full_stops,
    split_sentences,
    with_paired_marks,
)
from pipeline.shard.wrapped_lines import HYPHENS_KEPT, LINES_JOINED, MIN_WRAP_WIDTH, WORDS_JOINED, paragraphs
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


def cut(text: str, language: str = "en") -> list[str]:
    return split_sentences(text, language, "sentencex")


MARKS = ['A pipe of 6" is here.', 'The next one has 8" now.', "We know x < 5 here.", "So y > 3 holds."]
MARKS += ["It is sad :( today.", "Now it is good :) here.", "He took \u2018em home.", "They don\u2019t care."]
MARKS += ["The dogs' bowl is red.", "An open ( here.", "An open { here.", "A closed ] here."]


def test_marks_without_a_partner_hold_no_sentences_together() -> None:
    assert cut(" ".join(MARKS * 20)) == MARKS * 20
    hebrew = [
        '\u05e6\u05d4"\u05dc \u05e4\u05e8\u05e1\u05dd.',
        '\u05d3"\u05e8 \u05db\u05d4\u05df \u05d4\u05d2\u05d9\u05e2.',
        "\u05d4\u05d5\u05d0 \u05d2\u05e8.",
    ]
    assert cut(" ".join(hebrew * 20), "he") == hebrew * 20


def test_quotations_stay_whole() -> None:
    sentences = [
        'He said "I came. I saw." and left.',
        "\u201cCome here. Now.\u201d",
        "\u00abVenez ici. Vite.\u00bb",
        "\u201eIch komme. Du gehst.\u201c",
        "(It was late. We left.)",
    ]
    assert cut(" ".join(sentences)) == sentences
    swedish = ["Det regnar.", "\u201dKom hit. Nu.\u201d", "Hon gick."]
    assert cut(" ".join(swedish), "sv") == cut(" ".join(swedish), "fi") == swedish


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("sv", ["Jag vet det.", "Sedan gick han.", "Ring nr. Tre.", "Han sade \u201djag vet det. Kom nu\u201d."]),
        ("nb", ["Hun s\u00e5 det.", "Han gikk."]),
        ("vi", ["Con ma ma.", "Ng\u01b0\u1eddi \u0111i.", "\u201cT\u00f4i no. B\u00e0 v\u1ec1.\u201d", "R\u1ed3i."]),
        ("en", ["I saw Det. Smith.", "He said no.", "Then he left."]),
    ],
)
def test_english_abbreviations_are_those_of_english_alone(language: str, sentences: list[str]) -> None:
    assert cut(" ".join(sentences), language) == sentences


def test_a_mark_opens_as_it_closes_in_swedish_and_finnish_alone() -> None:
    text = "It is new. \u201dCome here.\u201d She left."
    assert cut(text, "sv") == cut(text, "fi") == ["It is new.", "\u201dCome here.\u201d", "She left."]
    assert cut(text, "en") == cut(text, "fr") == ["It is new. \u201d", "Come here.\u201d", "She left."]


def test_a_long_quotation_is_cut_into_its_sentences() -> None:
    inner = ["The first one is here."] * (MAX_QUOTED // 20)
    found = cut(f'He said "{" ".join(inner)}" Then he left.')
    assert len(found) == len(inner) + 1 and found[-1] == "Then he left."


def test_marks_that_never_close_take_linear_time() -> None:
    """The library alone takes half a minute for a megabyte of them."""
    assert len(cut("\u201cHello there my friend. " * 20_000)) == 20_000


@given(
    st.lists(
        st.sampled_from([*"\"'`()<>{}[]\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb", "``", ":(", "a", "B ", ". ", " "]),
        max_size=60,
    )
)
def test_marks_change_neither_length_nor_letters(parts: list[str]) -> None:
    text = "".join(parts)
    plain = with_paired_marks(text)
    assert len(plain) == len(text)
    assert all(new == old or not old.isalnum() for new, old in zip(plain, text, strict=True))


def test_ordinals_and_titles_end_no_sentence() -> None:
    for language, sentences in {
        "de": ["Die 1. Bundesliga beginnt.", "Das war 1990.", "Dann kam er."],
        "pl": ["W 3. Rozdziale jest.", "Dr. Nowak mieszka tu."],
        "hu": ["A 2. Fejezet.", "Ez az."],
        "fr": ["M. Dupont arrive.", "Mme. Durand part."],
        "vi": ["TP. HCM l\u00e0 th\u00e0nh ph\u1ed1.", "Tr\u1eddi m\u01b0a."],
        "en": ["It has 12.", "Then it left."],
    }.items():
        assert cut(" ".join(sentences), language) == sentences, language
    assert cut("Nummer 1.\n\nEin Absatz.", "de") == ["Nummer 1.", "Ein Absatz."]


def test_full_stops_of_other_scripts() -> None:
    for mark in "\u17d4\u17d5\u0f0e\u0df4\u0f0d":
        assert cut(f"\u1780\u1781{mark} \u1782\u1783{mark}", "km") == [f"\u1780\u1781{mark}", f"\u1782\u1783{mark}"]
    assert cut('\u4ed6\u8bf4\uff1a"\u4f60\u597d\u3002"\u7136\u540e\u8d70\u4e86\u3002', "zh") == [
        '\u4ed6\u8bf4\uff1a"\u4f60\u597d\u3002"',
        "\u7136\u540e\u8d70\u4e86\u3002",
    ]


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("hy", ["Լևոն աղե՜ն եկավ տուն։", "Ո՜վ է նա։", "Վա՛յ քեզ, վա՜յ։"]),
        ("my", ["ကိုလံဘို မြို့ ၊ စိန့် တပ်မတော် ၏ အကူအညီ ဖြစ် သည် ။", "ခဲ့ သည် ။"]),
        ("sa", ["मामकाः पाण्डवाश्चैव सञ्जय ॥ १ ॥", "सञ्जय उवाच ।", "दृष्ट्वा तु ॥२॥", "आचार्यम् ॥ 1.3 ॥", "पश्यैतां"]),
        ("grc", ["Τίς εἶ;", "Ἐγώ εἰμι."]),
        ("ti", ["ሰላም፡ነው።፡", "እንዴት፡ነህ፧"]),
        ("vi", ["Anh đi đâu?...", "Tôi về."]),
    ],
)
def test_what_is_no_sentence_belongs_to_the_one_before(language: str, sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences), language, "sentencex") == sentences
    assert split_sentences("\n\n".join(["1.", *sentences]), language, "sentencex") == ["1.", *sentences]


def test_only_what_is_wrapped_is_joined() -> None:
    counts: Counter[str] = Counter()
    poem = "the sea is wide and deep\na bird sings low\nnight falls on the quiet old town of stone\nwe go"
    assert split_sentences(poem, "en", "sentencex", counts) == poem.split("\n") and not counts
    table = "Chapter 1 ...................... 7\nChapter 2 ....... 14\nChapter 3 ............................... 21"
    assert cut(table) == table.split("\n")

    book = "The old man went home through the ring-\nstreaked woods and thought of the time when\nHenry was young."
    assert split_sentences(book, "en", "sentencex", counts) == [
        "The old man went home through the ring-streaked woods and thought of the time when Henry was young."
    ]
    assert counts == {LINES_JOINED: 2, HYPHENS_KEPT: 1}


def test_a_word_that_a_line_end_breaks_is_joined_if_the_text_has_it_elsewhere() -> None:
    counts: Counter[str] = Counter()
    text = (
        "The committee has decided that the new compe-\ntition of the gardens is open to all, that a well-\n"
        "known gardener and a tailor-\nmade jury see them before the re-\nsort opens, and not the re-sort.\n\n"
        "Competition of the resort, Wellknown, a well-known man."
    )
    assert split_sentences(text, "en", "sentencex", counts) == [
        "The committee has decided that the new competition of the gardens is open to all, that a well-known gardener "
        "and a tailor-made jury see them before the re-sort opens, and not the re-sort.",
        "Competition of the resort, Wellknown, a well-known man.",
    ]
    assert counts == {LINES_JOINED: 4, WORDS_JOINED: 1, HYPHENS_KEPT: 3}
    assert paragraphs("The new compe-\ntition of it", None, text) == ["The new competition of it"]


def test_a_line_end_at_the_end_changes_nothing() -> None:
    text = "The quick brown fox jumps over the lazy dog of\nHenry and sleeps.\nShort"
    assert cut(f"{text}\n") == cut(text) == [text[:-6].replace("\n", " "), "Short"]


def test_newline_trusts_the_corpus() -> None:
    assert split_sentences("One. Two.\n\nthree  four\n", "en", "newline") == ["One. Two.", "three four"]


@given(st.text())
def test_no_character_is_lost_but_spaces(text: str) -> None:
    cleaned = clean(text, Counter())
    counts: Counter[str] = Counter()
    found = split_sentences(cleaned, "en", "sentencex", counts)
    assume(WORDS_JOINED not in counts)
    assert "".join("".join(found).split()) == "".join(cleaned.split())
    assert all(sentence == " ".join(sentence.split()) and sentence for sentence in found)


def plain_unwrap(lines: list[str]) -> list[str]:
    """Joins lines one by one; a line break is a wrap if the next word would not have fitted on the line."""
    width = max(map(len, lines))
    texts = [line.strip() for line in lines]

    def is_full(place: int) -> bool:
        room = width - len(lines[place].rstrip())
        return " " in texts[place] and texts[place + 1] != "" and 1 + len(texts[place + 1].split(" ")[0]) > room

    full = [is_full(place) for place in range(len(lines) - 1)]
    is_wrapped = width >= MIN_WRAP_WIDTH and full.count(True) >= full.count(False)
    has_capitals = any(character.isupper() for text in texts for character in text)

    joined = [texts[0]]
    for place, text in enumerate(texts[1:]):
        begins_lower = has_capitals and text[:1].islower() and " " in texts[place] and texts[place][-1] not in ";{}:"
        if begins_lower or (is_wrapped and full[place]):
            is_hyphen = texts[place].endswith("-") and not texts[place].endswith(" -")
            joined[-1] += text if is_hyphen and text[0].islower() else " " + text
        else:
            joined.append(text)
    return joined


WORDS = st.lists(st.sampled_from(["a", "B", "-", ":", " ", "word ", "Word ", "a longer one "]), max_size=8)
LINES = st.lists(WORDS.map("".join), min_size=2, max_size=6)


@given(LINES)
@example(["a longer one a longer one a longer one -", "word"])
@example(["a longer one a longer one a longer word-", "word"])
def test_lines_are_joined_as_by_a_plain_loop(lines: list[str]) -> None:
    lines = [line[:120] or "x" for line in lines]  # an empty line would end the block
    counts: Counter[str] = Counter()
    found = paragraphs("\n".join(lines), counts)
    assume(WORDS_JOINED not in counts)
    assert found == plain_unwrap(lines)


WITH_FULL_STOPS = st.text(
    st.sampled_from("\u3002\uff01\uff1f!?\u2026\u201d\u300d\uff09\uff0c,:\u4e2da1 ."), max_size=20
)


@given(st.lists(WITH_FULL_STOPS, max_size=4))
def test_ideographic_cuts_are_those_of_each_sentence(sentences: list[str]) -> None:
    end = re.compile("[!?…]*[。！？][。！？!?…]*[”’」』）】》〉]*(?![，、；：,;:])")
    expected = []
    for sentence in sentences:
        start = 0
        for match in end.finditer(sentence):
            expected.append(sentence[start : match.end()])
            start = match.end()
        expected.append(sentence[start:])

    found = cut_after_full_stops(sentences)
    assert [part for part in found if part] == [part for part in expected if part]


@given(st.lists(st.sampled_from(["One. ", "\u4f60\u597d\u3002", "two", "\n", "\n\n", "  ", "\u201d"])))
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
