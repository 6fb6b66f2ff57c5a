import re
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.shard.cleaning import MAX_MARKS, MAX_UNBROKEN_CHARACTERS, clean, cut_marks, drop_long_words


def cleaned(text: str) -> tuple[str, dict[str, int]]:
    counts: Counter[str] = Counter()
    return clean(text, counts), dict(counts)


def test_each_rule_and_its_counter() -> None:
    assert cleaned("a\x00\x07b\ufeff") == ("ab", {"control characters removed": 3})
    assert cleaned("a\ufffdb") == ("ab", {"undecodable bytes removed": 1})
    assert cleaned("a\r\nb\rc\u2028d\x85e\x0bf\x0cg") == ("a\nb\nc\nd\ne\nf\ng", {"line ends made plain": 6})
    assert cleaned("a\u00a0b\tc\u3000d") == ("a b c d", {"spaces made plain": 3})
    assert cleaned("e\u0301") == ("\u00e9", {"composed (NFC)": 1})
    joined = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"
    assert cleaned(joined) == (joined, {})


@given(st.text())
def test_clean_text_is_plain_and_stays_so(text: str) -> None:
    plain, _ = cleaned(text)
    assert unicodedata.is_normalized("NFC", plain)
    assert not any(unicodedata.category(c) in ("Cc", "Cs") and c != "\n" for c in plain)
    assert not any(c.isspace() and c not in " \n" for c in plain)
    assert cleaned(plain) == (plain, {})


RULES = (
    ("line ends made plain", "\r(?=\r\n)", ""),  # written twice
    ("line ends made plain", "\r\n?|[\v\f\x1c-\x1e\x85\u2028\u2029]", "\n"),
    ("control characters removed", "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ufeff\ud800-\udfff]", ""),
    ("spaces made plain", "[\t\x1f\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]", " "),
    ("undecodable bytes removed", "\ufffd", ""),
)


def plain_clean(text: str) -> tuple[str, dict[str, int]]:
    """Every rule for every text, one after another."""
    counts: Counter[str] = Counter()
    for rule, pattern, replacement in RULES:
        text, times = re.subn(pattern, replacement, text)
        if times:
            counts[rule] += times

    text = cut_marks(text, counts)
    composed = unicodedata.normalize("NFC", text)
    if composed != text:
        counts["composed (NFC)"] += 1
        composed = cut_marks(composed, counts)
    return composed, dict(counts)


SPECIAL = "\r\n\v\x1c\x1e\x1f\x85\u2028\t \xa0\u3000\ufeff\0\x7f\ufffd\u0301\u0323e\u1100\u1161\u11a8\u0f73\ud800"
WILD = st.one_of(st.text(st.sampled_from(SPECIAL)), st.text(st.characters(exclude_categories=())))
PADDINGS = ("", "a" * 300, "\u4e2d" * 300)  # mostly ASCII, and mostly not


@given(WILD, st.sampled_from(PADDINGS))
@settings(max_examples=400)
def test_short_cuts_change_nothing(text: str, padding: str) -> None:
    assert cleaned(padding + text) == plain_clean(padding + text)


def test_a_text_that_is_left_alone_is_composed_whatever_its_characters() -> None:
    """Which characters compose comes from Unicode's tables; a new version of them may add some."""
    for code_point in (*range(0x80, 0x20000), *range(0x2F700, 0x2FB00)):  # all others neither compose nor decompose
        character = chr(code_point)
        text = f"{character}e{character}\u1112\u1161{character}"
        if clean(text, Counter()) == text:
            assert unicodedata.is_normalized("NFC", text), f"U+{code_point:04X}"


def test_a_word_of_a_million_characters_goes_and_its_sentence_stays() -> None:
    counts: Counter[str] = Counter()
    long = "QUJD" * 250_000
    assert drop_long_words([f"See {long} here.", long, "Fine."], counts) == ["See here.", "Fine."]
    assert counts == {"long words removed": 2, "characters of long words": 2 * len(long)}
    chinese: list[str] = ["\u4eca\u5929\u4e0b\u96e8\u4e86\uff0c" * 400]
    assert drop_long_words(chinese, counts) == chinese
    edge: list[str] = ["x" * MAX_UNBROKEN_CHARACTERS]
    assert drop_long_words(edge, counts) == edge


@pytest.mark.parametrize("mark", ["\u0316", "\u0344", "\u0f73", "\U0001d165"])
def test_marks_beyond_thirty_in_a_row_are_cut(mark: str) -> None:
    """U+0344 and U+0F73 are composed into two marks each."""
    text, counts = cleaned(f"x{mark * (MAX_MARKS + 2)} y")
    assert MAX_MARKS < len(text) <= MAX_MARKS + 3 and text.endswith(" y")
    assert counts["combining marks cut"] >= 2
    assert cleaned(text) == (text, {})


def test_texts_with_many_points_keep_them() -> None:
    hebrew = "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd " * 100
    assert "combining marks cut" not in cleaned(hebrew)[1]
    assert "combining marks cut" not in cleaned("x" + "\u0316" * MAX_MARKS + " y")[1]
