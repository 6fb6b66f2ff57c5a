from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.cleaning import clean
from pipeline.shard.sentences import paragraphs, split_sentences


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
