import pyarrow as pa
import pytest

from pipeline.vocab.counted_words import Words
from pipeline.vocab.kinds import maker_of
from pipeline.vocab.train import TrainedVocabulary, VocabularyOptions, train_with_all_places, train_wordpiece
from schemas import shards
from schemas.errors import DataError


def train(words: list[str], counts: list[int], *options, **more) -> TrainedVocabulary:
    table = pa.table([pa.array(words, pa.string()), pa.array(counts, pa.int64())], schema=shards.COUNTS_SCHEMA)
    return maker_of(options[0]).train(lambda: Words.of(table), VocabularyOptions(*options, **more))


def test_a_rare_character_never_glues_its_neighbors() -> None:
    """The published fault: with Z cut from the alphabet, `aZb` teaches a token `ab` that the text does not hold."""
    trained = train(["aZb", *"abcdefgh"], [50, *[9000] * 8], "wordpiece", 26, 2)  # room for 8 characters of 9
    assert "ab" not in trained.tokens
    assert trained.left_out.cut_characters == {"Z": 50}


@pytest.mark.parametrize(("model", "size"), [("wordpiece", 6), ("bytebpe", 260)])
def test_a_size_below_the_alphabet_says_what_would_do(model, size: int) -> None:
    with pytest.raises(DataError, match=rf"--size {size} cannot hold .*Give at least \d+"):
        train(["abc", "abd"], [1, 1], model, size, 2)


def test_a_size_is_filled_up_to_a_multiple() -> None:
    words = ["low", "lower", "lowest"]
    counts = [5, 3, 2]
    for model, last in (("wordpiece", "[unused"), ("bytebpe", "<mask>")):
        tokens = train(words, counts, model, 270, 2, pad_to_multiple=8).tokens
        assert len(tokens) % 8 == 0 and tokens[-1].startswith(last)
        assert any(token.startswith("[unused") for token in tokens)


def test_the_alphabet_can_be_bounded() -> None:
    trained = train(["abc", "abd"], [9, 1], "wordpiece", 50, 1, max_alphabet=3)
    assert trained.left_out.cut_characters == {"d": 1}
    assert "abc" in trained.tokens and "##d" not in trained.tokens


def test_a_corpus_of_one_word() -> None:
    assert train(["word"], [1], "wordpiece", 100, 1).tokens[-1] == "word"
    assert train(["a"], [1], "wordpiece", 100, 2).tokens[5:] == ["a"]
    assert train(["\u0120a"], [9], "bytebpe", 300, 2).tokens[-2:] == ["\u0120a", "<mask>"]


def test_a_word_longer_than_encoding_takes_teaches_nothing() -> None:
    trained = train(["x" * 101, "ab"], [10**6, 2], "wordpiece", 40, 2)
    assert trained.tokens[5:] == ["##b", "a", "ab"] and trained.left_out.cut_characters == {}


@pytest.mark.parametrize("model", ["wordpiece", "bytebpe"])
def test_the_order_of_words_changes_nothing(model) -> None:
    """Words come from partitions, and partitions depend on the size of the text."""
    last = "\U00020000low" if model == "wordpiece" else "\u0120low"
    words = ["low", "lower", "lowest", "newer", "wider", last]
    counts = [5, 3, 2, 6, 3, 1]
    table = pa.table([words, counts], schema=shards.COUNTS_SCHEMA)
    parts = [Words.of(table.slice(i, 1)) for i in (3, 0, 5, 2, 1, 4)]

    options = VocabularyOptions(model, 300, 1)
    train = maker_of(model).train
    in_parts = train(lambda: Words.concatenate(parts), options)
    assert in_parts == train(lambda: Words.of(table), options)


def test_places_that_merges_leave_free_go_to_characters() -> None:
    words = Words.of_counts({chr(0x4E00 + i): 1 + 200 // (i + 1) for i in range(100)})
    reads = []

    def read() -> Words:
        reads.append(1)
        return words

    trained = train_with_all_places(train_wordpiece, read, VocabularyOptions("wordpiece", 105, 2))
    assert (len(trained.tokens), trained.left_out.cut_characters) == (105, {})
    most = train_with_all_places(train_wordpiece, read, VocabularyOptions("wordpiece", 104, 2))
    assert most.left_out.cut_characters == {chr(0x4E00 + 99): 3} and len(reads) < 20
    with pytest.raises(DataError, match=r"--size 60 cannot hold the alphabet.*40 characters.*Give at least 200"):
        train_with_all_places(train_wordpiece, read, VocabularyOptions("wordpiece", 60, 2))


@pytest.mark.parametrize(
    ("counts", "options", "reason"),
    [
        ({"x" * 101: 3, "y" * 200: 1}, {}, "2 of 2 different words.*more than 100 characters.*--model unigram"),
        ({"x" * 101: 3, "ab": 1}, {"max_alphabet": 1}, "1 have a character.*bytebpe.*give more than --max_alphabet 1"),
    ],
)
def test_no_word_left_to_learn_from_says_why(counts: dict[str, int], options: dict[str, int], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        train(list(counts), list(counts.values()), "wordpiece", 100, 2, **options)
