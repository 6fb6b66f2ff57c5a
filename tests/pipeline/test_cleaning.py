import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from pipeline.shard.cleaning import clean


def test_the_rules() -> None:
    assert clean("a\x00b\u00a0c\td\u3000e") == ("ab c d e", 1)
    assert clean("a\r\nb\rc\u2028d\x85e\x0bf\x0cg") == ("a\nb\nc\nd\ne\nf\ng", 0)
    assert clean("\ufeffe\u0301\ufffd") == ("\u00e9", 2)
    assert clean("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645") == (
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        0,
    )


@given(st.text())
def test_clean_text_is_plain_and_stays_so(text: str) -> None:
    cleaned, _ = clean(text)
    assert unicodedata.is_normalized("NFC", cleaned)
    assert not any(unicodedata.category(c) in ("Cc", "Cs") and c != "\n" for c in cleaned)
    assert not any(c.isspace() and c not in " \n" for c in cleaned)
    assert clean(cleaned) == (cleaned, 0)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_ascii_is_left_alone(text: str) -> None:
    assert clean(text) == (text, 0)
