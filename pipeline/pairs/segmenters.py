"""The segmenters of `pairs --word_segmenter`: how Chinese, Japanese and Thai text is cut into words.

    jieba     Chinese    its packaged dictionary
    sudachi   Japanese   Sudachi's short units (mode A), with its small dictionary
    nlpo3     Thai       newmm: the fewest words of PyThaiNLP's list, never cut inside of a character cluster

All are deterministic, read packaged dictionaries alone, and download nothing. Versions of code and dictionary decide
where words begin, so they are part of a job's identity; jieba's is not, because it has had no release since 2020.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

from pipeline.pairs.word_segmentation import Cut, Ranges, Script, WordMarker
from pipeline.shard.languages import language_of_text
from schemas.errors import DataError
from schemas.manifest import Manifest

AUTO = "auto"
"""The value of --word_segmenter with which each document has the segmenter of its language."""

NONE = "none"

ALL = ""
"""The key of the segmenter of all documents, whatever their language."""

MOST_CHARACTERS = 1000
"""What sudachi and nlpo3 get at once. Sudachi refuses 64 KB after NFKC, which makes up to 33 bytes of a character."""

IDEOGRAPHS: Ranges = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""The code points that google-research/bert's tokenizer makes separate words (`_is_chinese_char`)."""

_KANA: Ranges = (
    (0x3005, 0x3007),  # marks for a repeated ideograph and the like
    (0x3031, 0x3035),
    (0x3041, 0x3096),
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0xFF66, 0xFF9D),
    (0x1B000, 0x1B16F),
)
_VOICED_MARKS: Ranges = ((0x3099, 0x309A), (0xFF9E, 0xFF9F))

_THAI: Ranges = ((0x0E01, 0x0E30), (0x0E32, 0x0E33), (0x0E40, 0x0E46), (0x0E50, 0x0E59))
_THAI_MARKS: Ranges = ((0x0E31, 0x0E31), (0x0E34, 0x0E3A), (0x0E47, 0x0E4E))
_THAI_RUN = re.compile("[\u0e01-\u0e3a\u0e40-\u0e4e\u0e50-\u0e59]+")

_loading = threading.Lock()


@dataclass(frozen=True)
class Segmenter:
    """A segmenter, for texts in one language.

    make: returns a function that cuts texts, for one thread. packages: those with its code and its dictionary, by the
    names of their modules. is_recorded: whether their versions are.
    """

    language: str
    script: Script
    make: Callable[[], Cut]
    packages: tuple[str, ...]
    is_recorded: bool = True


# Loading a segmenter takes up to a second and 65 MB, so threads share what they only read.


def _make_jieba() -> Cut:
    with _loading:
        cut = _jieba().cut
    return lambda text: _begins_of(cut(text))


@cache
def _jieba() -> Any:
    """Return jieba with its packaged dictionary, unaffected by words that other code adds or by a cache in /tmp."""
    with warnings.catch_warnings():  # Python 3.12 warns about jieba's regular expressions
        warnings.simplefilter("ignore")
        import jieba

    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True  # otherwise cutting would load the dictionary again, and modify it
    return tokenizer


def _make_sudachi() -> Cut:
    with _loading:
        tokenizer = _sudachi_dictionary().tokenizer("A")
    return lambda text: [
        start + morpheme.begin()
        for start in range(0, len(text), MOST_CHARACTERS)
        for morpheme in tokenizer.tokenize(text[start : start + MOST_CHARACTERS])
    ]


@cache
def _sudachi_dictionary() -> Any:
    from sudachipy import Dictionary

    return Dictionary(dict="small")


def _make_nlpo3() -> Cut:
    with _loading:
        name = _nlpo3_dictionary()
    from nlpo3 import segment

    def cut(text: str) -> list[int]:
        # nlpo3 repeats or loses characters where Thai stands among others, so it gets Thai alone; what it still changes
        # stays one word.
        begins = []
        for run in _THAI_RUN.finditer(text):
            for start in range(run.start(), run.end(), MOST_CHARACTERS):
                part = text[start : min(start + MOST_CHARACTERS, run.end())]
                words = segment(part, name)
                if "".join(words) == part:
                    begins += [start + begin for begin in _begins_of(words)]
            begins.append(run.end())
        return begins

    return cut


@cache
def _nlpo3_dictionary() -> str:
    """Load PyThaiNLP's list of words and return the name by which nlpo3 knows it."""
    from nlpo3 import load_dict

    # Found, not imported: PyThaiNLP itself makes a folder in the user's home.
    package = find_spec("pythainlp")
    folders = list(package.submodule_search_locations or []) if package else []
    if not folders:
        raise ModuleNotFoundError("No module named 'pythainlp'", name="pythainlp")
    words = Path(folders[0], "corpus", "words_th.txt")
    _, is_loaded = load_dict(str(words), str(words))
    if not is_loaded:
        raise DataError(f"{words}, PyThaiNLP's list of words, cannot be read. Install the package pythainlp again.")
    return str(words)


def _begins_of(words: Iterable[str]) -> list[int]:
    """Return where the words of a text begin that are all of it."""
    return [0, *accumulate(map(len, words))]


SEGMENTERS: dict[str, Segmenter] = {
    "jieba": Segmenter("zh", Script(IDEOGRAPHS), _make_jieba, ("jieba",), is_recorded=False),
    "sudachi": Segmenter(
        "ja",
        Script((*IDEOGRAPHS, *_KANA), _VOICED_MARKS),
        _make_sudachi,
        ("sudachidict_small", "sudachipy"),
    ),
    "nlpo3": Segmenter("th", Script(_THAI, _THAI_MARKS), _make_nlpo3, ("nlpo3", "pythainlp")),
}
"""The segmenters by the values of --word_segmenter."""


def chosen_segmenters(named: str, languages: str | None, text: Manifest) -> dict[str, str]:
    """Return the name of the segmenter for each language that has one, or that of ALL documents.

    named: of --word_segmenter. languages: the codes of --languages, with commas between.
    """
    if named != AUTO:
        return {} if named == NONE else {ALL: named}

    found = text.statistics.get("documents_by_language")
    name_of = {segmenter.language: name for name, segmenter in SEGMENTERS.items()}
    if not found:
        code = language_of_text(text)
        return {ALL: name_of[code]} if code in name_of else {}
    codes = languages.split(",") if languages else sorted(found)
    return {code: name_of[code] for code in codes if code in name_of}


def word_marker(name: str) -> WordMarker:
    """Return what marks words by the segmenter with this name, for one thread.

    Raises ModuleNotFoundError if its packages are not installed.
    """
    segmenter = SEGMENTERS[name]
    return WordMarker(segmenter.make(), segmenter.script)


def versions_of(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the packages that decide how the segmenters with these names cut.

    Raises ModuleNotFoundError if one is not installed.
    """
    versions = {}
    for segmenter in (SEGMENTERS[name] for name in sorted(names)):
        for package in segmenter.packages:
            if find_spec(package) is None:
                raise ModuleNotFoundError(f"No module named {package!r}", name=package)
            if segmenter.is_recorded:
                versions[package] = version(package)
    return dict(sorted(versions.items()))
