"""Words of Chinese, Japanese and Thai in the words of BERT's rules, by the segmenters that users get."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.segmenters import IDEOGRAPHS, SEGMENTERS, word_marker
from pipeline.pairs.word_segmentation import BEGINS, CONTINUES, KEPT
from pipeline.vocab.cut_words import library_cutter

cut = library_cutter("wordpiece", lowercase=True)
cut_with_marks = library_cutter("wordpiece", lowercase=False)
MARKERS = {name: word_marker(name) for name in SEGMENTERS}


def words(name: str, text: str, cut=cut_with_marks) -> list[str]:
    """The text's words as `word_starts` marks them, if each character is a token."""
    (marks,) = [MARKERS[name]([text], [cut(text)]).tolist()]
    found: list[str] = []
    for word in cut(text):
        for place, character in enumerate(word):
            mark = marks.pop(0)
            if found and (mark == CONTINUES or (place > 0 and mark == KEPT)):
                found[-1] += character
            else:
                found.append(character)
    assert not marks
    return found


def test_characters_fall_into_jiebas_words() -> None:
    assert words("jieba", "我爱北京天安门", cut) == ["我", "爱", "北京", "天安门"]
    assert words("jieba", "在PyTorch框架，2024年", cut) == ["在", "pytorch", "框架", "，", "2024", "年"]
    assert words("jieba", "plain English.", cut) == cut("plain English.")


def test_words_of_japanese_begin_inside_of_kana_and_join_ideographs_with_them() -> None:
    assert words("sudachi", "東京に住んでいる。") == ["東京", "に", "住ん", "で", "いる", "。"]
    assert words("sudachi", "人々はWebサイトのURLを見る") == ["人々", "は", "Web", "サイト", "の", "URL", "を", "見る"]
    assert words("sudachi", "見る\u3000ガラス") == ["見る", "ガラス"]


def test_words_of_thai_begin_inside_of_runs() -> None:
    assert words("nlpo3", "ฉันรักภาษาไทย ก็เพราะ") == ["ฉัน", "รัก", "ภาษาไทย", "ก็", "เพราะ"]
    assert words("nlpo3", "ใช้Debianเป็นระบบ") == ["ใช้", "Debian", "เป็นระบบ"]


def test_the_segmenter_reads_what_normalization_changes() -> None:
    """Without accents, ガラス is カラス, a crow, and Thai has lost vowels; the words are those of the text."""
    assert words("sudachi", "ガラスがあった", cut) == ["カラス", "か", "あっ", "た"]
    assert words("nlpo3", "ฉันรักคนไทยก็เป็น", cut) == ["ฉน", "รก", "คนไทย", "ก", "เปน"]
    # U+F900 becomes U+8C48; the control character between two goes away.
    assert words("jieba", "北京\uf900\u0007北京", cut) == ["北京", "\u8c48", "北京"]
    # A normalizer that replaces letters: the words themselves are segmented.
    assert MARKERS["jieba"](["x安门"], [["天", "安", "门"]]).tolist() == [KEPT, CONTINUES, CONTINUES]


@pytest.mark.parametrize("name", SEGMENTERS)
def test_texts_of_any_length_are_cut(name: str) -> None:
    """Sudachi refuses 64 KB, and NFKC makes eighteen letters of U+FDFA."""
    for text in ("\ufdfaあ" * 3000, "กา" * 20_000, "あ" * 50_000, "東京" * 3000):
        marks = MARKERS[name]([text, "", text], [[text], [], [text]]).tolist()
        assert len(marks) == 2 * len(text)
        assert marks[: len(text)] == marks[len(text) :]


@pytest.mark.parametrize("name", SEGMENTERS)
@given(st.text(st.sampled_from("北京天安门的々\u3400\U0002b820\uf900ab1é, あがアーｶﾞ。\u0301\u3099\u3000\0กาเป็นก็ำ๐ฯ")))
@settings(max_examples=300)
def test_a_mark_stands_where_it_means_something(name: str, text: str) -> None:
    """Words are joined at the first letter of one and between letters of the script; they begin elsewhere."""
    for cutter in (cut, cut_with_marks):
        of_text = cutter(text)
        (marks,) = [MARKERS[name]([text], [of_text]).tolist()]
        firsts = [place == 0 for word in of_text for place in range(len(word))]
        assert len(marks) == len(firsts)
        letters = "".join(of_text)
        for place, (mark, is_first) in enumerate(zip(marks, firsts, strict=True)):
            assert mark == KEPT or (mark == CONTINUES) == is_first
            if mark == CONTINUES and name == "jieba":
                assert is_ideograph(letters[place]) and is_ideograph(letters[place - 1])
            assert mark != BEGINS or name != "jieba"


def is_ideograph(character: str) -> bool:
    return any(first <= ord(character) <= last for first, last in IDEOGRAPHS)
