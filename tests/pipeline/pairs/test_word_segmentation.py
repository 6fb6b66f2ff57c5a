from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.pairs.word_segmentation import is_ideograph, joined_words
from pipeline.vocab.cut_words import library_cutter

cut = library_cutter("wordpiece", lowercase=True)


def words(text: str) -> list[str]:
    """The text's words as `word_starts` will mark them."""
    found: list[str] = []
    for word, goes_on in zip(cut(text), joined_words(text, cut(text)), strict=True):
        if goes_on:
            found[-1] += word
        else:
            found.append(word)
    return found


def test_characters_fall_into_jiebas_words() -> None:
    assert words("\u6211\u7231\u5317\u4eac\u5929\u5b89\u95e8") == [
        "\u6211",
        "\u7231",
        "\u5317\u4eac",
        "\u5929\u5b89\u95e8",
    ]
    assert words("\u5728PyTorch\u6846\u67b6\uff0c2024\u5e74") == [
        "\u5728",
        "pytorch",
        "\u6846\u67b6",
        "\uff0c",
        "2024",
        "\u5e74",
    ]
    assert words("plain English.") == cut("plain English.")


def test_ideographs_that_normalisation_changes_keep_their_place() -> None:
    """U+F900 becomes U+8C48; the control character between two goes away."""
    assert words("\u5317\u4eac\uf900\u0007\u5317\u4eac") == ["\u5317\u4eac", "\u8c48", "\u5317\u4eac"]


@given(
    st.text(st.sampled_from("\u5317\u4eac\u5929\u5b89\u95e8\u7684\u3400\U0002b820\uf900ab1\u00e9, \u3042\u3002\u0301"))
)
@settings(max_examples=300, deadline=None)
def test_words_never_begin_inside_others_or_join_what_is_no_ideograph(text: str) -> None:
    pieces = cut(text)
    joined = joined_words(text, pieces)
    assert len(joined) == len(pieces)
    for i, goes_on in enumerate(joined):
        if goes_on:
            assert is_ideograph(pieces[i]) and is_ideograph(pieces[i - 1])
