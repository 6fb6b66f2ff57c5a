"""What the rules of RULES say in words, and the papers that they come from, for the page of `shard --sample`.

docs/filters.md has the same words, and a test compares the two. A rule without a row is shown by its name alone.
"""

from __future__ import annotations

PAPERS = {
    "c4": "Raffel et al., arXiv:1910.10683, section 2.2, and its published code",
    "gopher": "Rae et al., arXiv:2112.11446, appendix A.1",
    "fineweb": "Penedo et al., arXiv:2406.17557, section 3.6",
}
"""The paper of each published set."""

_TOP = "share of characters in the most frequent {} words that occur twice or more"
_DUPLICATE = "share of characters in {} words that occurred before"
_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")

DEFINITIONS = {
    "max_line_word_length": "a line's longest word, in characters",
    "unfinished_lines": "a line that does not end with ., ?, !, the like of other scripts, or a closing quotation "
    "mark, or ends with an ellipsis; marks such as [12] and [edit] are removed from all lines before",
    "min_line_words": "words of a line",
    "javascript_lines": "a line that names JavaScript",
    "policy_lines": "a line about cookies, terms of use or privacy policies",
    "lorem_ipsum": "how often a document has this placeholder",
    "curly_brackets": "how often a document has {",
    "min_words": "words of a document",
    "max_words": "words of a document",
    "min_mean_word_length": "mean characters of a word",
    "max_mean_word_length": "mean characters of a word",
    "max_hashes_per_word": "# for each word",
    "max_ellipses_per_word": "... and \u2026 for each word",
    "max_bullet_lines": "share of lines that begin with \u2022 or -",
    "max_ellipsis_lines": "share of lines that end with an ellipsis",
    "min_alphabetic_words": "share of words with a letter",
    "min_stop_words": "how many of the, be, to, of, and, that, have, with occur",
    "max_duplicate_paragraphs": "share of paragraphs that occurred before",
    "max_duplicate_paragraph_characters": "share of characters in paragraphs that occurred before",
    "max_duplicate_lines": "share of lines that occurred before",
    "max_duplicate_line_characters": "share of characters in lines that occurred before, line ends included",
    **{f"max_top_{n}_gram": _TOP.format(_NUMBERS[n - 2]) for n in range(2, 5)},
    **{f"max_duplicate_{n}_grams": _DUPLICATE.format(_NUMBERS[n - 2]) for n in range(5, 11)},
    "min_punctuated_lines": "share of lines that end with a full stop, question or exclamation mark, of many scripts, "
    "or an ellipsis",
    "max_short_lines": "share of lines of at most 30 characters",
    "max_repeated_line_characters": "share of characters in lines that occurred before, line ends left out",
    "max_line_ends_per_word": "line ends for each word",
    "min_sentences": "sentences of a document, as shard splits them",
}
"""What each rule measures, by its name."""
