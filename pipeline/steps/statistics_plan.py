"""How `statistics` divides its work: the shards to read, how many of their rows, lots of shards, and partitions."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from schemas.cooccurrences import Counting
from schemas.errors import UsageError
from schemas.manifest import PART_ENTRIES

LOT_TOKENS = 16 << 20
"""Tokens per lot: a few blocks, and a few seconds of work."""

PARTITION_OCCURRENCES = 12 << 20
"""Co-occurrences counted per partition: those of 4 million tokens with a window of 3. Adding up a partition takes some
100 bytes for each distinct pair of tokens: up to 2.6 GB if no pair occurred twice. In English most do."""

MAX_PARTITIONS = 4096

MAX_OCCURRENCES = MAX_PARTITIONS * PARTITION_OCCURRENCES
"""The most co-occurrences that may be counted: those of 17 billion tokens with a window of 3. With more, either a
partition would outgrow a worker's memory, or the indexes of all runs that of the launcher: some 4,096 runs, each cut
for 512 groups of partitions, are 2 million elements (pipeline/runtime/exchange.py). Sums stay far below 64 bits."""

LEAST_SHARDS = 64
"""A sample is drawn from at least this many shards, if the folder has them. Chosen by hand: all rows of a document are
in one shard, so a sample of few shards would have few documents, and a long one would weigh too much in it."""


def stride_of(num_shards: int, tokens: int, max_tokens: int) -> int:
    """Return s if every s-th shard is read. Documents are assigned to shards by hash, so any shard is a sample."""
    needed = ceil(num_shards * min(1.0, max_tokens / max(tokens, 1)))
    wanted = min(num_shards, max(needed, LEAST_SHARDS))
    return max(1, num_shards // max(wanted, 1))


@dataclass(frozen=True)
class StatisticsPlan:
    """What is counted, and how the work is divided.

    pairs: the folder, as workers open it. fingerprint: of the pairs when the job began.
    num_shards: of the pairs. num_parts: of the pairs' list of shards; 1 if the manifest has no parts.
    tokens: of all rows, special tokens included. tokens_read: of the shards that are read, every stride-th.
    max_tokens: maximum tokens to count.
    max_cooccurrences: maximum pairs of tokens to keep.
    """

    pairs: str
    fingerprint: str
    vocabulary: str
    counting: Counting
    num_shards: int
    num_parts: int
    tokens: int
    tokens_read: int
    max_tokens: int
    max_cooccurrences: int

    @property
    def stride(self) -> int:
        """The distance between two shards that are read."""
        return stride_of(self.num_shards, self.tokens, self.max_tokens)

    @property
    def shards_read(self) -> int:
        return ceil(self.num_shards / self.stride)

    @property
    def share_of_rows(self) -> float:
        """The maximum share of the tokens in the shards read that is counted. Manifests call it share_of_rows."""
        return min(1.0, self.max_tokens / max(self.tokens_read, 1))

    def limit_of_shard(self, tokens: int) -> int:
        """Return the maximum number of a shard's tokens to count. All limits add up to max_tokens or less."""
        if self.tokens_read <= self.max_tokens:
            return tokens
        return tokens * self.max_tokens // self.tokens_read

    @property
    def shards_per_lot(self) -> int:
        """The number of neighboring shards in a lot, read or not. It divides PART_ENTRIES, so parts have whole lots."""
        tokens_a_shard = max(1, self.tokens // max(self.num_shards, 1))
        wanted = max(1, min(self.stride * LOT_TOKENS // tokens_a_shard, PART_ENTRIES))
        return 1 << (wanted.bit_length() - 1)

    @property
    def lots(self) -> int:
        return -(-self.num_shards // self.shards_per_lot)

    @property
    def counted_tokens(self) -> int:
        """The number of tokens to count, at most: rows that no longer fit into a sample are left out whole."""
        return min(self.tokens, self.max_tokens)

    @property
    def partitions(self) -> int:
        """The number of partitions of token pairs: a power of two.

        A partition has fewer than 2 * PARTITION_OCCURRENCES of all co-occurrences, apart from chance.
        """
        wanted = max(1, self.counted_tokens * self.counting.window // PARTITION_OCCURRENCES)
        return 1 << (wanted - 1).bit_length()

    @property
    def most_in_partition(self) -> int:
        """The maximum token pairs that a partition keeps. Pairs are assigned by hash, so partitions are about equal.

        At least one, so that a small --max_cooccurrences does not leave all partitions empty.
        """
        return max(1, self.max_cooccurrences // self.partitions)


def check_size(plan: StatisticsPlan) -> None:
    """Raise UsageError if more co-occurrences would be counted than MAX_OCCURRENCES."""
    window = plan.counting.window
    limit = MAX_OCCURRENCES // window
    if plan.counted_tokens > limit:
        raise UsageError(
            f"--max_tokens {plan.max_tokens:,} is too much for --window {window}: the co-occurrences of "
            f"{plan.counted_tokens:,} tokens would not fit into memory. Give --max_tokens {limit}."
        )
