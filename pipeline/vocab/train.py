"""Trains vocabularies from word counts: a function for each kind. The result is the tokens in the order of their ids.

    wordpiece   [PAD] [UNK] [CLS] [SEP] [MASK], the sorted alphabet, then merges in the order learned, [unusedN]
    bytebpe     <s> <pad> </s> <unk>, the 256 bytes, merges, [unusedN], and <mask> last, as in RoBERTa
    unigram     the special tokens of ALBERT or XLNet, then tokens, the most probable first

Shape suffixes: N distinct words, T characters of all words, C code points (all of Unicode).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from pipeline.vocab.bpe import BPETrainer, Join, join_bytes, join_wordpieces
from pipeline.vocab.counted_words import CODE_POINTS, UnigramRules, Words, cut_parts, fold_words, look_up
from pipeline.vocab.symbol_array import WordSymbols
from pipeline.vocab.unigram import learn_tokens
from pipeline.words.arrow import Bools, Ints
from schemas.errors import DataError
from schemas.ragged import offsets_of
from schemas.vocabulary_kinds import BYTE_OF_CHARACTER, Model, SpecialTokens, kind_of

MAX_CUT = 0.005  # share of the text's characters that the default alphabet may leave out
MAX_WORD_CHARACTERS = 100  # characters; tokenizers encodes a longer word as [UNK] (in Google's code the limit is 200)
UNUSED_CHARACTERS = "[unused0123456789]"
UNIGRAM_COVERAGE = 0.99995  # of the text's characters, as in the training of ALBERT's and XLNet's vocabularies

NEVER = -1e4
"""The score of tokens that text must never become: below that of any word spelled out in characters."""


@dataclass(frozen=True)
class LeftOut:
    """What learning left out of a text.

    cut_characters: too rare for the alphabet, with their counts; words with one of them become [UNK].
    kept_characters: the number of characters in the alphabet. text_characters: all characters of the text.
    long_words: the distinct words of a WordPiece text that are too long to be anything but [UNK], and their
    occurrences.
    """

    cut_characters: dict[str, int] = field(default_factory=dict)
    kept_characters: int = 0
    text_characters: int = 0
    long_words: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class TrainedVocabulary:
    """`tokens[i]` has id i. free_places: tokens that the size allows beyond those learned.

    scores: in Unigram, the natural logarithm of each token's probability.
    """

    tokens: list[str]
    specials: SpecialTokens
    merges: list[tuple[str, str]]
    left_out: LeftOut
    free_places: int
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class VocabularyOptions:
    """What decides a vocabulary besides the word counts.

    size: the maximum number of tokens. min_frequency: how often two tokens must meet to be merged. max_alphabet:
    maximum characters of an alphabet that the user chose. alphabet_room: the maximum otherwise, by default half of
    `size`. pad_to_multiple: [unusedN] tokens pad the vocabulary to a multiple of this number. rules: in Unigram, how
    the counted words are normalized, and which special tokens come first. text: names the words' text in errors.
    """

    model: Model
    size: int
    min_frequency: int
    max_alphabet: int | None = None
    pad_to_multiple: int = 1
    rules: UnigramRules = field(default_factory=UnigramRules)
    alphabet_room: int | None = None
    text: str = "the text"

    @property
    def specials(self) -> SpecialTokens:
        return kind_of(self.model).specials_of(self.rules.family)


ReadWords = Callable[[], Words]
"""Reads the words to learn from. Trainers call it themselves, so that no caller keeps the words in memory."""


Trainer = Callable[[ReadWords, VocabularyOptions], TrainedVocabulary]
"""Trains a vocabulary of one kind. The order of the words does not matter.

Raises DataError if `options.size` cannot hold the special tokens and the alphabet, or if no word is left to learn from.
"""


def train_with_all_places(train: Trainer, read_words: ReadWords, options: VocabularyOptions) -> TrainedVocabulary:
    """Train a vocabulary, and while places stay free, train again with more characters of those that were left out.

    A character takes up to two places in WordPiece. read_words: reads the words again for each training, because they
    are not kept in memory meanwhile.
    """
    trained = train(read_words, options)
    if options.max_alphabet is not None:
        return trained

    free_before = options.size
    while trained.left_out.cut_characters and 0 < trained.free_places < free_before:
        free_before = trained.free_places
        room = trained.left_out.kept_characters + max(1, free_before // 2)
        trained = train(read_words, replace(options, alphabet_room=room))

    check_coverage(trained.left_out, options.size)
    return trained


def train_wordpiece(read_words: ReadWords, options: VocabularyOptions) -> TrainedVocabulary:
    return _train_bpe(lambda: _wordpiece_alphabet(read_words(), options), join_wordpieces, options)


def train_bytebpe(read_words: ReadWords, options: VocabularyOptions) -> TrainedVocabulary:
    return _train_bpe(lambda: _bytebpe_alphabet(read_words(), options), join_bytes, options)


def _train_bpe(read_alphabet: Callable[[], _Alphabet], join: Join, options: VocabularyOptions) -> TrainedVocabulary:
    alphabet = read_alphabet()
    trainer = BPETrainer(alphabet.symbols, alphabet.spellings, join)
    left_out = alphabet.left_out
    del alphabet  # its symbols take as much memory as any array of the trainer

    specials = options.specials
    room = options.size - len(specials.all)
    trainer.train(room, options.min_frequency)

    missing = -(len(specials.all) + len(trainer.tokens)) % options.pad_to_multiple
    unused = [f"[unused{i}]" for i in range(missing)]
    return TrainedVocabulary(
        tokens=[*specials.first, *trainer.tokens, *unused, *specials.last],
        specials=specials,
        merges=trainer.merges,
        left_out=left_out,
        free_places=room - len(trainer.tokens),
    )


def train_unigram(read_words: ReadWords, options: VocabularyOptions) -> TrainedVocabulary:
    first = options.specials.first
    words = fold_words(read_words(), options.rules.lowercase, options.rules.keep_accents)
    counts_C = words.count_characters()
    ranked = -np.sort(-counts_C[counts_C > 0])
    covering = int(np.searchsorted(np.cumsum(ranked), UNIGRAM_COVERAGE * ranked.sum())) + 1
    is_kept_C, left_out = _choose_characters(counts_C, min(covering, max(1, options.size // 2)), options)
    parts = cut_parts(words, is_kept_C)
    del words
    if len(parts.counts_N) == 0:
        raise DataError(
            f"No word of {options.text} is left to learn from: without accents nothing remains of them. Give "
            "--keep_accents."
        )

    # Special tokens that are spelled out in a text must be text, so each of their characters must be a token too.
    spelled = {chr(point) for point in np.flatnonzero(is_kept_C).tolist()}
    absent = sorted(set("".join([*first, UNUSED_CHARACTERS])) - spelled)
    room = options.size - len(first) - len(absent)
    needed = options.size - room + len(spelled)
    if needed > options.size:
        raise DataError(
            f"--size {options.size} cannot hold {len(first)} special tokens and {len(spelled) + len(absent)} "
            f"characters. Give at least {needed}."
        )

    learned = learn_tokens(parts, room)
    tokens = [*first, *learned.spellings, *absent]
    scores = [NEVER] * len(first) + learned.scores + [min(learned.scores, default=0.0)] * len(absent)

    unused = [f"[unused{i}]" for i in range(-len(tokens) % options.pad_to_multiple)]
    return TrainedVocabulary(
        tokens=[*tokens, *unused],
        specials=options.specials,
        merges=[],
        left_out=left_out,
        free_places=options.size - len(tokens),
        scores=scores + [NEVER] * len(unused),
    )


def _choose_characters(counts_C: Ints, default_limit: int, options: VocabularyOptions) -> tuple[Bools, LeftOut]:
    """Choose the characters of an alphabet. Returns ((C,) bool, true for these, and the others).

    Raises DataError if the characters would be too many even without merges.
    """
    if options.max_alphabet is None:
        check_coverage(common_characters(counts_C, options.size)[1], options.size)
    return common_characters(counts_C, options.max_alphabet or options.alphabet_room or default_limit)


def common_characters(counts_C: Ints, limit: int) -> tuple[Bools, LeftOut]:
    """Return ((C,) bool, true for the `limit` most frequent characters; and the others).

    Among characters with equal counts, the lower code point is kept.
    """
    points = np.flatnonzero(counts_C)
    ranked = points[np.argsort(-counts_C[points], kind="stable")]

    is_kept_C = np.zeros(CODE_POINTS, dtype=bool)
    is_kept_C[ranked[:limit]] = True
    cut = {chr(point): int(counts_C[point]) for point in ranked[limit:].tolist()}
    return is_kept_C, LeftOut(cut, len(ranked[:limit]), int(counts_C.sum()))


@dataclass(frozen=True)
class _Alphabet:
    """The words as symbols, the spelling of each symbol, and what has no symbol."""

    symbols: WordSymbols
    spellings: list[str]
    left_out: LeftOut


def _wordpiece_alphabet(words: Words, options: VocabularyOptions) -> _Alphabet:
    """Choose a WordPiece alphabet, by default of half the vocabulary at first (see train_with_all_places).

    Words with a character that is not in it are left out as a whole: without it, their remaining parts would be joined
    into tokens that occur in no text.
    """
    specials = len(options.specials.all)
    is_kept_C, left_out = _choose_characters(words.count_characters(), max(1, options.size // 2 - specials), options)

    too_long = long_words(words, MAX_WORD_CHARACTERS)
    trainable = trainable_words(words, is_kept_C)
    if len(trainable.counts_N) == 0:
        raise _no_trainable_word(len(words.counts_N), too_long[0], options)

    symbols, alphabet = wordpiece_symbols(trainable)
    needed = specials + len(alphabet)
    if needed > options.size:
        raise DataError(
            f"--size {options.size} cannot hold {specials} special tokens and an alphabet of {len(alphabet)} "
            f"characters. Give at least {needed}."
        )
    return _Alphabet(symbols, alphabet, replace(left_out, long_words=too_long))


def _no_trainable_word(words: int, too_long: int, options: VocabularyOptions) -> DataError:
    """Return the error for words that are all too long, or have a character that is left out of the alphabet."""
    if options.max_alphabet is None and too_long < words:
        return DataError(
            f"--size {options.size} cannot hold the alphabet of {options.text}: half of it spells none of its words. "
            f"Give at least {10 * options.size}."
        )

    remedies = []
    if too_long:
        remedies.append("use --model unigram or --model bytebpe, which have no longest word")
    if too_long < words:
        remedies.append(f"give more than --max_alphabet {options.max_alphabet}")
    return DataError(
        f"No word of {options.text} is left to learn from: {too_long:,} of {words:,} different words have more than "
        f"{MAX_WORD_CHARACTERS} characters, which WordPiece takes for [UNK], and {words - too_long:,} have a character "
        f"that is left out of the alphabet. For this text, {', and '.join(remedies)}."
    )


def _bytebpe_alphabet(words: Words, options: VocabularyOptions) -> _Alphabet:
    """Return the alphabet of all bytes, with which no word is unknown."""
    specials = len(options.specials.all)
    alphabet = sorted(BYTE_OF_CHARACTER)
    needed = specials + len(alphabet)
    if needed > options.size:
        raise DataError(
            f"--size {options.size} cannot hold {specials} special tokens and 256 bytes. Give at least {needed}."
        )

    # The characters of the alphabet are below U+0200.
    symbol_of_code_point = np.zeros(0x200, dtype=np.uint8)
    symbol_of_code_point[[ord(character) for character in alphabet]] = np.arange(len(alphabet))
    symbols_T = look_up(symbol_of_code_point, words.characters_T)
    return _Alphabet(WordSymbols(symbols_T, words.lengths_N, words.counts_N), alphabet, LeftOut())


def long_words(words: Words, longest: int | None) -> tuple[int, int]:
    """Return how many distinct words have more characters than the longest that a tokenizer takes, and how often."""
    is_long_N = words.lengths_N > (longest or np.inf)
    return int(np.count_nonzero(is_long_N)), int(words.counts_N[is_long_N].sum())


def trainable_words(words: Words, is_kept_C: Bools) -> Words:
    """Return the words that a tokenizer would encode: not too long, and without a character that is not kept."""
    is_kept_T = look_up(is_kept_C, words.characters_T)
    all_kept_N = np.logical_and.reduceat(is_kept_T, offsets_of(words.lengths_N)[:-1])
    return words.select(all_kept_N & (words.lengths_N <= MAX_WORD_CHARACTERS))


def check_coverage(left_out: LeftOut, size: int) -> None:
    """Raise DataError if the characters cut from the alphabet are not rare: words with them become [UNK]."""
    cut = left_out.cut_characters
    cut_count = sum(cut.values())
    if cut_count > MAX_CUT * left_out.text_characters:
        raise DataError(
            f"--size {size} cannot hold the alphabet: it would leave out {len(cut)} characters that make up "
            f"{cut_count / left_out.text_characters:.1%} of the text. Give at least "
            f"{2 * (left_out.kept_characters + len(cut))}."
        )


def wordpiece_symbols(words: Words) -> tuple[WordSymbols, list[str]]:
    """Return the words as indices into an alphabet, and the alphabet.

    A character has two forms: `x` at the beginning of a word and `##x` inside one. Only forms that occur are included.
    """
    word_starts_N = offsets_of(words.lengths_N)[:-1]
    initial_C = np.bincount(words.characters_T[word_starts_N], minlength=CODE_POINTS)
    inner_C = replace(words, counts_N=np.ones_like(words.counts_N)).count_characters() - initial_C

    code_points = {chr(point): point for point in np.flatnonzero(initial_C).tolist()}
    inner_code_points = {f"##{chr(point)}": point for point in np.flatnonzero(inner_C).tolist()}
    alphabet = sorted([*code_points, *inner_code_points])

    symbol_type = np.min_scalar_type(len(alphabet))
    initial_symbol_C = np.zeros(CODE_POINTS, dtype=symbol_type)
    inner_symbol_C = np.zeros(CODE_POINTS, dtype=symbol_type)
    for symbol, token in enumerate(alphabet):
        if token in code_points:
            initial_symbol_C[code_points[token]] = symbol
        else:
            inner_symbol_C[inner_code_points[token]] = symbol

    symbols_T = look_up(inner_symbol_C, words.characters_T)
    symbols_T[word_starts_N] = initial_symbol_C[words.characters_T[word_starts_N]]
    return WordSymbols(symbols_T, words.lengths_N, words.counts_N), alphabet
