"""Exact word counts of a text shard, as the vocabulary's model sees words (BERT's basic tokens, GPT-2's pre-tokens).

A shard's text falls into runs of non-spaces; most recur, so each different one is cut into words once and its words
are counted as often as it occurred. Tables leave a worker whole, cut into PARTITIONS by a hash of the word, and are
added up with 64-bit integers; nothing is dropped before all are added.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import chain

import pyarrow as pa
from tokenizers import Regex, normalizers, pre_tokenizers

from schemas import shards
from schemas.manifest import Shard, read_shard_bytes
from schemas.vocabulary import Model

PARTITIONS = 16
MAX_REMEMBERED = 1_000_000  # runs; about 250 MB
Cut = Callable[[str], list[str]]


def normalizer(lowercase: bool) -> normalizers.Normalizer:
    """BERT's: control characters out, CJK characters apart, accents stripped when lower-casing (arXiv:1810.04805)."""
    return normalizers.BertNormalizer(lowercase=lowercase)  # type: ignore[return-value]


def pre_tokenizer(model: Model) -> pre_tokenizers.PreTokenizer:
    """BERT's split at spaces and punctuation, or GPT-2's pattern over bytes; each word with the space before it."""
    if model == "wordpiece":
        # tokenizers' own list of ideographs begins this block 256 characters late; Google's begins here
        missed = pre_tokenizers.Split(Regex("[\U0002b820-\U0002b91f]"), "isolated")
        return pre_tokenizers.Sequence([missed, pre_tokenizers.BertPreTokenizer()])  # type: ignore[return-value]
    return pre_tokenizers.ByteLevel(add_prefix_space=True)  # type: ignore[return-value]


@lru_cache(maxsize=1)
def remembering_cutter(model: Model, lowercase: bool) -> Cut:
    """One a worker process: most runs of a shard were seen in another, and cutting one takes 5 microseconds."""
    return lru_cache(maxsize=MAX_REMEMBERED)(word_cutter(model, lowercase))


def word_cutter(model: Model, lowercase: bool) -> Cut:
    """A function from a run of non-spaces to its words."""
    split = pre_tokenizer(model).pre_tokenize_str
    if model == "bytebpe":
        return lambda run: [word for word, _ in split(run)]
    normalize = normalizer(lowercase).normalize_str
    return lambda run: [word for word, _ in split(normalize(run))]


def count_words(sentences: Iterable[str], cut: Cut) -> Counter[str]:
    """How often each word occurs."""
    runs = Counter(chain.from_iterable(sentence.split(" ") for sentence in sentences))
    words: Counter[str] = Counter()
    for run, count in runs.items():
        for word in cut(run):
            words[word] += count
    return words


def count_shard(folder: str, shard: Shard, model: Model, lowercase: bool) -> Iterator[tuple[int, bytes]]:
    """(partition, Arrow bytes of its word counts) of one text shard."""
    table = shards.decode_table(read_shard_bytes(folder, shard), shard.path, shards.TEXT)
    sentences = table["sentences"].combine_chunks().flatten().to_pylist()
    parts: list[dict[str, int]] = [{} for _ in range(PARTITIONS)]
    for word, count in count_words(sentences, remembering_cutter(model, lowercase)).items():
        parts[zlib.crc32(word.encode()) % PARTITIONS][word] = count
    for partition, counts in enumerate(parts):
        columns = [pa.array(counts.keys(), pa.string()), pa.array(counts.values(), pa.int64())]
        yield partition, shards.encode_table(pa.table(columns, schema=shards.COUNTS))


def add_counts(tables: Iterable[bytes]) -> bytes:
    """The sum of count tables, by word. 64-bit: a corpus would need 9 quintillion words to overflow."""
    decoded = pa.concat_tables(shards.decode_table(data, "word counts", shards.COUNTS) for data in tables)
    summed = decoded.group_by("word").aggregate([("count", "sum")]).rename_columns(["word", "count"])
    return shards.encode_table(summed.sort_by("word"))


def commonest_first(tables: Iterable[bytes]) -> pa.Table:
    """All partitions as one table, by falling count and then by word."""
    decoded = pa.concat_tables(shards.decode_table(data, "word counts", shards.COUNTS) for data in tables)
    return decoded.sort_by([("count", "descending"), ("word", "ascending")])
