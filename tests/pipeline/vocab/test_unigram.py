"""Learning a Unigram vocabulary: as likely as that of the tokenizers library, from words cut as it cuts them."""

import json
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from pipeline.vocab.counted_words import CODE_POINTS, MAX_PART_CHARACTERS, UnigramRules, Words, cut_parts, fold_words
from pipeline.vocab.cut_words import library_cutter
from pipeline.vocab.lattice import MAX_TOKEN, chunks_of
from pipeline.vocab.train import VocabularyOptions, train_unigram
from pipeline.vocab.unigram import exp_digamma, frequent_substrings, learn_tokens, natural_log
from pipeline.words.rules import count_steps, sentencepiece_pre_tokenizer, unigram_normalizer
from schemas import shards
from schemas.errors import DataError
from schemas.ragged import offsets_of

EVERY_CHARACTER = np.ones(CODE_POINTS, dtype=bool)


def words_of(counts: dict[str, int]) -> Words:
    table = pa.table([pa.array(list(counts), pa.string()), list(counts.values())], schema=shards.COUNTS_SCHEMA)
    return Words.of(table)


def longest_first(counts: dict[str, int]) -> Words:
    return words_of({word: counts[word] for word in sorted(counts, key=lambda word: (-len(word), word))})


def strings_of(words: Words) -> list[str]:
    text = "".join(map(chr, words.characters_T.tolist()))
    offsets = offsets_of(words.lengths_N).tolist()
    return [text[offsets[i] : offsets[i + 1]] for i in range(len(offsets) - 1)]


def test_exact_functions_are_logarithm_and_digamma() -> None:
    x = np.concatenate([np.linspace(0.01, 5, 500), np.logspace(-12, 12, 500)])
    np.testing.assert_allclose(natural_log(x), [math.log(v) for v in x], rtol=1e-14, atol=1e-15)

    harmonic = 0.0
    for n in range(1, 40):  # digamma(n) is the sum of 1 / k below n, less Euler's constant
        expected = math.exp(harmonic - 0.5772156649015329)
        assert exp_digamma(np.array([float(n)]))[0] == pytest.approx(expected, rel=1e-8)
        harmonic += 1 / n


def test_long_strings_of_rare_characters_do_not_underflow() -> None:
    word = "abcdefgh" * (MAX_PART_CHARACTERS // 8)
    words = words_of({word: 3})
    seeds = frequent_substrings(words, limit=10**6)
    probability = np.where(seeds.lengths_S == 1, 1e-12, 1e-200)
    found = np.zeros(len(probability))
    for chunk in chunks_of(words.lengths_N, words.counts_N, seeds.occurrences):
        chunk.add_expected(probability, found)
    characters = int((found * seeds.lengths_S).sum().round())
    assert np.isfinite(found).all() and characters == 3 * len(word)


STRANGE = "aE1.'`\"\u00e9\u00c9\u0301\u00b4\u00a0\u200b\u2581\uac00\u1100\u1161\uff21\ufb01\u0130\u4e2d \t"
WILD = st.one_of(st.text(), st.text(STRANGE))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("keep_accents", [True, False])
@given(text=WILD)
@settings(max_examples=60)
def test_counted_and_folded_words_are_those_of_the_tokenizer(lowercase: bool, keep_accents: bool, text: str) -> None:
    cut = library_cutter("unigram", lowercase=False)
    counted = [word for run in text.split(" ") for word in cut(run)]
    folded: list[str] = []
    for word in counted:
        folded += strings_of(fold_words(words_of({word: 1}), lowercase, keep_accents))

    normalized = unigram_normalizer(lowercase, keep_accents).normalize_str(text)
    assert folded == [word for word, _ in sentencepiece_pre_tokenizer().pre_tokenize_str(normalized)]


def test_words_are_cut_where_scripts_meet() -> None:
    tokyo = "\u2581\u6771\u4eac\u30bf\u30ef\u30fc"
    counts = {"\u2581end.": 2, "\u2581(end)": 3, f"{tokyo}x": 1, "\u2581e\u0301t": 1, "\u2581aZb": 5}
    words = words_of(counts)
    is_kept = EVERY_CHARACTER.copy()
    is_kept[ord("Z")] = False
    parts = cut_parts(words, is_kept)
    found = dict(zip(strings_of(parts), parts.counts_N.tolist(), strict=True))
    whole = {"\u2581end": 2, "\u2581(": 3, "\u2581e\u0301t": 1, "\u2581a": 5, tokyo: 1}
    assert found == whole | {"end": 3, ".": 2, ")": 3, "x": 1, "b": 5}

    long = cut_parts(words_of({"a" * 300: 1}), EVERY_CHARACTER)
    assert long.lengths_N.max() == MAX_PART_CHARACTERS and long.lengths_N @ long.counts_N == 300


@pytest.mark.parametrize("counts", [{"abcd": 5}, {"a": 1}, {"ab": 2, "cabd": 3}, {"aaaaaaaaaaaaaaaaaaaa": 2}])
def test_few_words_are_learned_as_well(counts: dict[str, int]) -> None:
    """Of few words, there may be no substring of some length that says more than a longer one."""
    learned = learn_tokens(longest_first(counts), 100)
    assert sum(map(math.exp, learned.scores)) == pytest.approx(1)
    characters = set("".join(counts))
    assert characters <= set(learned.spellings)
    assert counts != {"abcd": 5} or learned.spellings[0] == "abcd"


def test_the_order_of_words_changes_nothing() -> None:
    counts = {f"\u2581{word}": 3 + i for i, word in enumerate(["low", "lower", "Lowest", "newer", "wider", "l\u00f6w"])}
    options = VocabularyOptions("unigram", 64, 2)
    trained = train_unigram(lambda: words_of(counts), options)
    assert train_unigram(lambda: words_of(dict(reversed(counts.items()))), options) == trained
    assert "\u2581low" in trained.tokens and len(set(trained.tokens)) == len(trained.tokens)
    assert trained.tokens[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert trained.scores[5:] == sorted(trained.scores[5:], reverse=True)


def test_sizes_and_alphabets() -> None:
    counts = {"\u2581abc": 9, "\u2581abd": 1}
    with pytest.raises(DataError, match=r"--size 20 cannot hold 5 special tokens and \d+ char.*Give at least \d+"):
        train_unigram(lambda: words_of(counts), VocabularyOptions("unigram", 20, 2))

    options = VocabularyOptions(
        "unigram", 64, 2, max_alphabet=4, pad_to_multiple=100, rules=UnigramRules("xlnet", False)
    )
    trained = train_unigram(lambda: words_of(counts), options)
    assert trained.left_out.cut_characters == {"d": 1} and len(trained.tokens) == 100
    assert trained.tokens[:3] == ["<unk>", "<s>", "</s>"] and trained.tokens[-1].startswith("[unused")


def test_the_likelihood_is_no_worse_than_the_librarys(documents: list[str]) -> None:
    """Both learn as many pieces from the same parts. Theirs is fitted as ours is in the end, which only helps it."""
    size = 250
    counts: Counter[str] = Counter()
    cut = library_cutter("unigram", lowercase=False)
    for document in [*documents, *Path(__file__).read_text().splitlines()]:
        for run in document.split(" "):
            counts.update(cut(run))
    words = fold_words(words_of(dict(counts)), lowercase=True, keep_accents=False)
    parts = cut_parts(words, EVERY_CHARACTER)
    amounts = dict(zip(strings_of(parts), parts.counts_N.tolist(), strict=True))

    learned = learn_tokens(parts, size)
    ours = dict(zip(learned.spellings, map(math.exp, learned.scores), strict=True))
    theirs = library_pieces(amounts, size)
    assert len(ours) == len(theirs) == size and sum(ours.values()) == pytest.approx(1)

    fitted = theirs
    for _ in range(3):
        fitted = expectation(amounts, fitted)[1]
    by_us = expectation(amounts, ours)[0]
    assert by_us >= expectation(amounts, theirs)[0]
    assert by_us >= expectation(amounts, fitted)[0]


def library_pieces(amounts: dict[str, int], size: int) -> dict[str, float]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.UnigramTrainer(
        vocab_size=size + 1, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator((" ".join([part] * count) for part, count in amounts.items()), trainer)
    vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
    return {piece: math.exp(score) for piece, score in vocab if piece != "<unk>"}


def expectation(amounts: dict[str, int], pieces: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Return (the log-likelihood, probabilities after a round of maximum likelihood), string by string."""
    expected = dict.fromkeys(pieces, 0.0)
    likelihood = 0.0
    for string, count in amounts.items():
        size = len(string)
        edges = [(i, j) for j in range(size + 1) for i in range(max(0, j - MAX_TOKEN), j) if string[i:j] in pieces]
        forward = [1.0] + [0.0] * size
        backward = [0.0] * size + [1.0]
        for i, j in edges:
            forward[j] += forward[i] * pieces[string[i:j]]
        for i, j in sorted(edges, reverse=True):
            backward[i] += pieces[string[i:j]] * backward[j]
        likelihood += count * math.log(forward[size])
        for i, j in edges:
            expected[string[i:j]] += count * forward[i] * pieces[string[i:j]] * backward[j] / forward[size]

    total = sum(max(0.5, expected[piece]) for piece in pieces)
    return likelihood, {piece: max(0.5, expected[piece]) / total for piece in pieces}


def test_counting_normalizes_as_sentencepiece_does() -> None:
    """nmt_nfkc: full-width letters and ligatures, no control characters, and every kind of space is one."""
    normalize = normalizers.Sequence(count_steps()).normalize_str
    assert normalize("\uff21\ufb01\u0007 ``x''") == 'Afi "x"'
    assert normalize("a\u3000b\u00a0c\u200bd\u2581e\tf") == "a b c d e f"
    # The joiner of letters stays, as in sentencepiece; everything else is as tokenizers has it.
    assert normalize("\u0dc1\u0dca\u200d\u0dbb\u0dd3") == "\u0dc1\u0dca\u200d\u0dbb\u0dd3"
    theirs = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]).normalize_str
    points = [*range(0xD800), *range(0xE000, 0x10000)]
    different = [point for point in points if normalize(f"x{chr(point)}y") != theirs(f"x{chr(point)}y")]
    assert different == [0x200D]
