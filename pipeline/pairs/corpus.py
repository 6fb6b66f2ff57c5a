"""What rows are made from: the documents of one text shard as offsets into its tokens, and the options of a job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from schemas.manifest import Objective
from schemas.masking import Masking

DocumentLedger = Counter[tuple[str, int]]
"""Counts of what was left out or cut: (reason, number of the document in the shard) -> count."""


@dataclass(frozen=True)
class PairOptions:
    """The options of a job that decide rows, besides text and vocabulary.

    max_length: maximum tokens in a row, special tokens included. static_masks: the number of masks stored with each
    row, drawn as `masking` says.
    """

    objective: Objective
    max_length: int
    short_seq_prob: float
    seed: int
    static_masks: int = 0
    masking: Masking = field(default_factory=Masking)


@dataclass(frozen=True)
class EncodedCorpus:
    """The offsets of a text shard's sentences and documents in its token array.

    Sentence i is tokens sentence_offsets_N1[i] : sentence_offsets_N1[i + 1], and document j is sentences
    document_offsets_D1[j] : document_offsets_D1[j + 1]. Every document has at least one sentence, and every sentence at
    least one token.
    """

    sentence_offsets_N1: NDArray[np.int64]
    document_offsets_D1: NDArray[np.int64]
    document_ids_D: NDArray[np.uint64]
