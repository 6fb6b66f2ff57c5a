import pytest

from pipeline.vocab.counting import count_words, word_cutter
from pipeline.vocab.learning import learn
from schemas.errors import DataError


def test_layouts() -> None:
    words, counts = ["low", "lower", "lowest"], [5, 3, 2]
    wordpiece = learn(words, counts, "wordpiece", 40, 2)
    assert wordpiece.tokens[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert "lower" in wordpiece.tokens
    assert len(wordpiece.tokens) == len(set(wordpiece.tokens))
    bytebpe = learn(words, counts, "bytebpe", 300, 2)
    assert bytebpe.tokens[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert bytebpe.tokens[-1] == "<mask>"


def test_a_rare_character_never_glues_its_neighbours() -> None:
    """The published fault: with Z cut from the alphabet, `aZb` teaches a token `ab` that the text does not hold."""
    learnt = learn(["aZb", *"abcdefgh"], [50, *[9000] * 8], "wordpiece", 26, 2)  # room for 8 characters of 9
    assert "ab" not in learnt.tokens
    assert learnt.cut_characters == {"Z": 50}


@pytest.mark.parametrize(("model", "size"), [("wordpiece", 6), ("bytebpe", 260)])
def test_a_size_below_the_alphabet_says_what_would_do(model, size: int) -> None:
    with pytest.raises(DataError, match=rf"--size {size} cannot hold .*Give at least \d+"):
        learn(["abc", "abd"], [1, 1], model, size, 2)


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


def test_a_size_is_filled_up_to_a_multiple() -> None:
    words, counts = ["low", "lower", "lowest"], [5, 3, 2]
    for model, last in (("wordpiece", "[unused"), ("bytebpe", "<mask>")):
        tokens = learn(words, counts, model, 270, 2, pad_to_multiple=8).tokens  # type: ignore[arg-type]
        assert len(tokens) % 8 == 0 and tokens[-1].startswith(last)
        assert any(token.startswith("[unused") for token in tokens)


def test_the_alphabet_can_be_bounded() -> None:
    learnt = learn(["abc", "abd"], [9, 1], "wordpiece", 50, 1, max_alphabet=3)
    assert learnt.cut_characters == {"d": 1}
    assert "abc" in learnt.tokens and "##d" not in learnt.tokens


def test_words_are_counted_as_often_as_they_occur() -> None:
    counts = count_words(["The cat, the dog.", "THE end."], word_cutter("wordpiece", lowercase=True))
    assert counts == {"the": 3, "cat": 1, ",": 1, "dog": 1, ".": 2, "end": 1}
