"""Where Chinese words begin, so that whole words can be masked though every character is a token of its own.

jieba cuts a run of text into words; BERT's rules set every ideograph apart. The k-th ideograph of the run is the k-th
that stands alone among BERT's words, whatever normalisation did to the rest, so the two are aligned by counting.
Nothing of this reaches an id: only `word_starts` changes. The rule is Chinese-BERT-wwm's (arXiv:1906.08101).
"""

from __future__ import annotations

import threading
import warnings
from functools import lru_cache
from typing import Any

with warnings.catch_warnings():  # its regular expressions are written in a way that Python 3.12 warns of
    warnings.simplefilter("ignore")
    import jieba

_GOOGLES_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""Code points that google-research/bert's tokenizer sets apart."""


def is_ideograph(character: str) -> bool:
    point = ord(character)
    return point >= 0x3400 and any(first <= point <= last for first, last in _GOOGLES_RANGES)


_loading = threading.Lock()


def segmenter() -> Any:
    """jieba's own dictionary, read from its package: neither words that other code teaches it nor a cache in /tmp.

    All threads of a process share it, for cutting only reads it. The lock saves loading it once for each thread, which
    would take a second and 150 MB each time.
    """
    with _loading:
        return _load()


@lru_cache(maxsize=1)
def _load() -> Any:
    made = jieba.Tokenizer()
    made.FREQ, made.total = made.gen_pfdict(made.get_dict_file())
    made.initialized = True  # cutting would otherwise load the dictionary again, and write to it
    return made


def joined_words(run: str, words: list[str]) -> list[bool]:
    """For each of BERT's `words` of a run: whether it goes on with the Chinese word of the word before it.

    Example: `joined_words("我爱北京", ["我", "爱", "北", "京"])` -> `[False, False, False, True]`.
    """
    if not any(map(is_ideograph, run)):
        return [False] * len(words)

    goes_on = []
    for part in segmenter().cut(run):
        goes_on += [i > 0 and is_ideograph(part[i - 1]) for i, character in enumerate(part) if is_ideograph(character)]

    # The k-th ideograph of the words is the k-th of the run. Some words hold several, or one among other characters:
    # added tokens, and ideographs that a published tokenizer does not set apart.
    joined = []
    flags = iter(goes_on)
    for word in words:
        flags_of_word = [next(flags, False) for character in word if is_ideograph(character)]
        joined.append(len(word) == 1 and any(flags_of_word))
    return joined
