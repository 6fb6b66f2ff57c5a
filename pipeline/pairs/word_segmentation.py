"""Finds where Chinese words begin, so that whole words can be masked although every character is a token.

jieba cuts a run of text into words, while BERT's rules make every ideograph a separate word. The two are aligned by
counting: the k-th ideograph of the run is the k-th ideograph among BERT's words, however normalization changed the
characters between them. Token ids do not change, only `word_starts` does. The rule is that of Chinese-BERT-wwm
(arXiv:1906.08101).
"""

from __future__ import annotations

import threading
import warnings
from functools import lru_cache
from typing import Any

with warnings.catch_warnings():  # Python 3.12 warns about jieba's regular expressions
    warnings.simplefilter("ignore")
    import jieba

_IDEOGRAPH_RANGES = (
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
_FIRST_IDEOGRAPH = 0x3400

_loading = threading.Lock()


def is_ideograph(character: str) -> bool:
    """Return whether BERT's rules make a character a separate word."""
    point = ord(character)
    if point < _FIRST_IDEOGRAPH:  # most characters of most text
        return False
    return any(first <= point <= last for first, last in _IDEOGRAPH_RANGES)


def segmenter() -> Any:
    """Return jieba with its packaged dictionary, unaffected by words that other code adds or by a cache in /tmp.

    All threads of a process share it, because cutting only reads it. Without the lock, each thread might load a
    dictionary, which takes a second and 150 MB.
    """
    with _loading:
        return _load()


@lru_cache(maxsize=1)
def _load() -> Any:
    tokenizer = jieba.Tokenizer()
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True  # otherwise cutting would load the dictionary again, and modify it
    return tokenizer


def joined_words(run: str, words: list[str]) -> list[bool]:
    """Return for each of BERT's `words` of a run whether it continues the Chinese word before it.

    Example: `joined_words("我爱北京", ["我", "爱", "北", "京"])` -> `[False, False, False, True]`.
    """
    if not any(map(is_ideograph, run)):
        return [False] * len(words)

    # The k-th ideograph of the words is the k-th of the run. Some words contain several, or one among other characters:
    # added tokens, and ideographs that a published tokenizer does not isolate. They never continue a word.
    joined = []
    continues = iter(_continuing_ideographs(run))
    for word in words:
        continues_of_word = [next(continues, False) for character in word if is_ideograph(character)]
        joined.append(len(word) == 1 and any(continues_of_word))
    return joined


def _continuing_ideographs(run: str) -> list[bool]:
    """Return for each ideograph of a run whether it continues the word of an ideograph directly before it."""
    continues = []
    for word in segmenter().cut(run):
        follows_ideograph = False
        for character in word:
            if is_ideograph(character):
                continues.append(follows_ideograph)
                follows_ideograph = True
            else:
                follows_ideograph = False
    return continues
