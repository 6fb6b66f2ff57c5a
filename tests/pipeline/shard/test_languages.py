import pytest
import sentencex

from pipeline.shard.languages import _languages, fallback_note, find_language
from schemas.errors import UsageError

PROBE = (
    "Am 3. Okt. kam er bzw. sie. Das war z. B. gut. Mme. Curie dit etc. Ende. La Sra. Paz y el Dr. Gil. "
    "См. ул. Ленина, г. Москва. Hr. Bo kom kl. 4. Juli. Nr. 5 blz. 6 bijv. Zo. Np. to jest. "
    "π.χ. Αυτό. नमस्ते। हाँ। И т.н. Так. Prof. Es."
)


NAMES = {"en": "en", "DE": "de", "deu": "de", "ger": "de", "German": "de", "Chinese": "zh", "cmn": "zh", "yue": "yue"}
NAMES |= {"zh-Hant": "zh", "pt_BR": "pt", " haitian  creole ": "ht", "und": "und", "iw": "he", "in": "id"}
NAMES |= {"Norwegian Bokmål": "nb", "chr": "chr", "NQO": "nqo", "syc-Syrc": "syc"}


@pytest.mark.parametrize(("given", "code"), NAMES.items())
def test_codes_and_names_become_one_code(given: str, code: str) -> None:
    assert find_language(given).code == code


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("xx", "Give its"),
        ("", ""),
        ("germna", "german"),
        ("Sweedish", "swedish"),
        ("N'Ko", "zh or chr"),
    ],
)
def test_what_is_no_language_is_refused_with_the_nearest(given: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"--language ['\"]{given}['\"].*{hint}"):
        find_language(given)


def test_each_language_is_split_by_the_rules_that_the_table_names() -> None:
    languages = {language.code: language for language in _languages().values()}
    assert len(languages) == 288
    for language in languages.values():
        assert languages[language.rules].rules == language.rules
        own = language.rules if language.code in ("grc", "ti") else language.code  # sentencex has those of English
        found = sentencex.segment(own, PROBE)  # type: ignore[attr-defined]
        assert found == sentencex.segment(language.rules, PROBE), language  # type: ignore[attr-defined]
        assert (fallback_note(language) is None) == (language.rules == language.code)


def test_a_language_without_rules_is_told_by_its_code() -> None:
    assert "no rules for chr, so sentences are split by those of English (en)" in str(
        fallback_note(find_language("chr"))
    )
