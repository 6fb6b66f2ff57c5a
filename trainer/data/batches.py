"""Makes micro-batches for the model: packs rows with their masks, and pads them to one fixed shape.

Packed rows lie end to end. A compiled model or a CUDA graph needs a single shape, a constant number of tokens,
sequences and masked positions. Padding to it does not change any result: its tokens form separate sequences, which
no other sequence attends to; missing sequences have no tokens; and missing masked positions have a label that the loss
ignores.

Shape suffixes: B rows (S sequences, in the model's terms), T tokens, K masked tokens or targets, F filler sequences
(those made of padding). B1 means B + 1 offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from schemas.masking import Masking, Masks, RowsToMask
from schemas.ragged import offsets_of
from schemas.randomness import U64, numbers
from schemas.vocabulary import Vocabulary
from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder, moments, rows_by_length
from trainer.data.permutations import draw_targets
from trainer.data.rows import PairRows
from trainer.data.share import TOKEN_MULTIPLE, RankShare
from trainer.models.batch import IGNORE_INDEX, PackedBatch

CLASSIFIER_SEGMENT = 2
"""The segment of [CLS] (SEG_ID_CLS in zihangdai/xlnet)."""

FIRST_DRAW_COUNTER = 1 << 49
"""The counter of a row's first replacement. Masks and SOP's order draw from the same keys, with counters far below."""


def pack(rows: PairRows, masks: Masks) -> PackedBatch:
    """Return the rows as one micro-batch on the CPU, with the masked tokens replaced."""
    lengths_B = rows.lengths()
    starts_B = rows.offsets_B1[:-1]
    sequence_T = np.repeat(np.arange(len(lengths_B)), lengths_B)
    positions_T = np.arange(len(rows.ids_T)) - np.repeat(starts_B, lengths_B)
    in_segment_b_T = positions_T >= np.repeat(rows.segment_b_B, lengths_B)

    # Take the labels before the masked tokens are overwritten. astype() copies: the rows stay as they are.
    ids_T = rows.ids_T.astype(np.int64)
    labels_K = ids_T[masks.positions_K]
    ids_T[masks.positions_K] = masks.seen_K

    return PackedBatch(
        ids_T=torch.from_numpy(ids_T),
        segments_T=torch.from_numpy(in_segment_b_T.astype(np.int64)),
        positions_T=torch.from_numpy(positions_T),
        sequence_T=torch.from_numpy(sequence_T),
        sequence_starts_S=torch.from_numpy(starts_B.copy()),
        longest=int(lengths_B.max()),
        masked_positions_K=torch.from_numpy(masks.positions_K),
        labels_K=torch.from_numpy(labels_K),
        pair_labels_S=torch.from_numpy(rows.labels_B.astype(np.int64, copy=False)),
        tokens=len(rows.ids_T),
        predicted=len(labels_K),
        paired=int((rows.labels_B != IGNORE_INDEX).sum()),
    )


def pack_causal(rows: PairRows) -> PackedBatch:
    """Return the rows as one micro-batch in which every token predicts the next one, except the last of each row.

    Pair labels are left out, because they are predicted from the first token, which sees no other token here.
    """
    is_last_T = np.zeros(len(rows.ids_T), dtype=bool)
    is_last_T[rows.offsets_B1[1:] - 1] = True
    positions_K = np.flatnonzero(~is_last_T)

    counts_B = rows.lengths() - 1
    unchanged = Masks(positions_K, rows.ids_T[positions_K], offsets_of(counts_B))
    batch = pack(rows, unchanged)
    return replace(
        batch,
        labels_K=torch.from_numpy(rows.ids_T[positions_K + 1].astype(np.int64)),
        pair_labels_S=torch.full_like(batch.pair_labels_S, IGNORE_INDEX),
        paired=0,
        causal=True,
    )


def pack_permuted(rows: PairRows, keys_B: U64, masking: Masking, vocabulary: Vocabulary) -> PackedBatch:
    """Return stored rows as one micro-batch on the CPU, in XLNet's layout, with targets instead of masks.

    Rows of pairs begin with [CLS]. XLNet's end with it, and it is a separate segment, number 2:

        [CLS] A [SEP] B [SEP]       segments 0 0 0 1 1      as they are stored
        A [SEP] B [SEP] [CLS]       segments 0 0 1 1 2      as XLNet reads them

    So the first token is moved to the end when rows are read, and the same shards serve all model families. Rows with
    only one segment have no segment 1. Rows of a byte-level BPE vocabulary keep both of RoBERTa's separators between A
    and B, where XLNet's own rows have one. keys_B: the rows' random keys, uint64.
    """
    rows = first_token_last(rows)
    to_draw = RowsToMask(rows.ids_T, rows.offsets_B1, rows.word_starts_T, keys_B)
    targets = draw_targets(to_draw, masking, vocabulary)

    # The input keeps the targets' own ids. Attention hides from each query what it must not see.
    unchanged = Masks(targets.positions_K, rows.ids_T[targets.positions_K], targets.offsets_B1)
    batch = pack(rows, unchanged)

    segments_T = batch.segments_T.clone()
    segments_T[torch.from_numpy(rows.offsets_B1[1:] - 1)] = CLASSIFIER_SEGMENT
    return replace(
        batch,
        segments_T=segments_T,
        order_T=torch.from_numpy(targets.order_T),
        most_targets=int(np.diff(targets.offsets_B1).max()),
    )


def first_token_last(rows: PairRows) -> PairRows:
    """Return the rows with each one's first token moved to its end. No row is empty."""
    starts_B = rows.offsets_B1[:-1]
    lasts_B = rows.offsets_B1[1:] - 1

    # Each token comes from the place after its own, and the last of a row from the row's beginning.
    sources_T = np.arange(1, len(rows.ids_T) + 1)
    sources_T[lasts_B] = starts_B
    return replace(
        rows,
        ids_T=rows.ids_T.take(sources_T),
        word_starts_T=rows.word_starts_T.take(sources_T),
        segment_b_B=rows.segment_b_B - 1,
    )


def with_replacement_draws(batch: PackedBatch, rows: PairRows, masks: Masks, keys_B: U64) -> PackedBatch:
    """Return the batch with `draws_K`, int64 in [0, 2**63), from which ELECTRA's generator samples replacements.

    They are drawn from the keys of the rows' masks, with the token's place in the row as the counter. So a replacement
    depends neither on other rows nor on rank, step or restart.
    """
    row_K = np.repeat(np.arange(len(keys_B)), np.diff(masks.offsets_B1))
    places_K = masks.positions_K - rows.offsets_B1[row_K]
    draws_K = numbers(keys_B[row_K], places_K + FIRST_DRAW_COUNTER) >> np.uint64(1)
    return replace(batch, draws_K=torch.from_numpy(draws_K.astype(np.int64)))


# Padding


@dataclass(frozen=True)
class BatchShape:
    """The shape of a micro-batch.

    tokens, sequences, masked: how many of each. The last two are doubled, as often as needed, for a batch with more.
    longest: the maximum number of tokens in a sequence. padded: every row is padded to `longest`, which decides the
    number of tokens. most_tokens: the tokens of the larger shape for the rare batch that has more than `tokens`; None
    if no batch has.
    """

    tokens: int
    sequences: int
    masked: int
    longest: int
    padded: bool = False
    most_tokens: int | None = None


def shape_for(tokens: int, mean_length: float, longest: int, mask_prob: float, padded: bool) -> BatchShape:
    """Return a shape for micro-batches of at most `tokens` tokens, in rows of about `mean_length` tokens.

    mask_prob: the share of tokens that are masked or predicted. The numbers of sequences and of masked tokens vary
    between batches; the shape has room for those of nearly all batches.
    """
    tokens = _round_up(tokens, TOKEN_MULTIPLE)
    rows = tokens / mean_length

    # Room for four square roots of the mean more, which are four standard deviations of a Poisson distribution.
    sequences = int(rows + 4 * rows**0.5) + 4

    # Each row's number of masked tokens is rounded and at least 1, which may add up to a token for each row.
    masked = _round_up(int(1.02 * mask_prob * tokens + rows), 8)
    return BatchShape(tokens, sequences, masked, longest, padded)


def pad_to_shape(batch: PackedBatch, shape: BatchShape, pad_id: int) -> PackedBatch:
    """Return the batch padded to the shape."""
    lengths_F = _filler_lengths(batch, shape)
    fillers = len(lengths_F)
    missing_tokens = int(lengths_F.sum())
    sequences = len(batch.sequence_starts_S)

    # What is still missing after the fillers: sequences without tokens, and masked positions whose label is ignored.
    filled_sequences = sequences + fillers
    missing_sequences = _double_until(shape.sequences, filled_sequences) - filled_sequences
    masked = len(batch.masked_positions_K)
    missing_masked = _double_until(shape.masked, masked) - masked

    # For each padding token: the filler sequence that it belongs to, and its position in that sequence.
    filler_of_token = torch.repeat_interleave(torch.arange(fillers), lengths_F)
    starts_F = torch.cumsum(lengths_F, 0) - lengths_F
    filler_positions = torch.arange(missing_tokens) - starts_F[filler_of_token]

    draws_K = None if batch.draws_K is None else _extend(batch.draws_K, missing_masked, 0)
    filler_starts = starts_F + len(batch.ids_T)
    empty_starts = torch.zeros(missing_sequences, dtype=torch.int64)
    return replace(
        batch,
        ids_T=_extend(batch.ids_T, missing_tokens, pad_id),
        segments_T=_extend(batch.segments_T, missing_tokens, 0),
        positions_T=torch.cat([batch.positions_T, filler_positions]),
        sequence_T=torch.cat([batch.sequence_T, filler_of_token + sequences]),
        sequence_starts_S=torch.cat([batch.sequence_starts_S, filler_starts, empty_starts]),
        longest=shape.longest,
        masked_positions_K=_extend(batch.masked_positions_K, missing_masked, 0),
        labels_K=_extend(batch.labels_K, missing_masked, IGNORE_INDEX),
        pair_labels_S=_extend(batch.pair_labels_S, fillers + missing_sequences, IGNORE_INDEX),
        draws_K=draws_K,
        order_T=None if batch.order_T is None else _extend(batch.order_T, missing_tokens, -1),
    )


def _filler_lengths(batch: PackedBatch, shape: BatchShape) -> Tensor:
    # For padded rows: one filler for each row that is shorter than the longest.
    if shape.padded:
        end = torch.tensor([len(batch.ids_T)])
        lengths_S = torch.diff(batch.sequence_starts_S, append=end)
        return (shape.longest - lengths_S)[lengths_S < shape.longest]

    # Otherwise as few fillers as possible: whole ones, and the rest.
    tokens = shape.tokens
    if shape.most_tokens is not None and len(batch.ids_T) > tokens:
        tokens = shape.most_tokens
    whole, rest = divmod(tokens - len(batch.ids_T), shape.longest)
    lengths = [shape.longest] * whole
    if rest > 0:
        lengths.append(rest)
    return torch.tensor(lengths, dtype=torch.int64)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _double_until(expected: int, needed: int) -> int:
    """Double `expected` until it is at least `needed`, so that even unusual batches add only a few shapes."""
    while expected < needed:
        expected *= 2
    return expected


def _extend(values: Tensor, count: int, value: int) -> Tensor:
    return torch.cat([values, values.new_full((count,), value)])


# The shape of a recipe's micro-batches


def shape_of(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> BatchShape | None:
    """Return the shape to which all micro-batches are padded, or None if batch.shape is `exact`."""
    if recipe.batch.shape == "exact":
        return None

    # One shape for all sizes of a ramp: the largest.
    sizes = {(share.size, share.micro_batches), *share.ramp}
    shapes = [shape_of_size(folders, recipe, replace(share, size=size, micro_batches=n)) for size, n in sorted(sizes)]
    largest = max(shapes, key=lambda shape: shape.tokens)
    return replace(largest, most_tokens=max(shape.most_tokens or 0 for shape in shapes))


def shape_of_size(folders: list[PairFolder], recipe: Recipe, share: RankShare) -> BatchShape:
    """Return the shape for global batches of the share's size."""
    batch = recipe.batch
    longest = max(folder.max_length for folder in folders)
    tokens = sum(folder.manifest.totals["tokens"] for folder in folders)
    rows = sum(folder.manifest.totals["rows"] for folder in folders)

    if batch.global_batch is not None:
        # Few rows are as long as the longest, so nearly all batches fit into a smaller shape.
        most_tokens = -(-share.size // share.micro_batches_per_step) * longest
        usual_tokens = min(most_tokens, usual_row_tokens(folders, share) + longest)
    else:
        # A global batch exceeds its size by less than one row of each folder, and no two micro-batches differ by more
        # than one row.
        most_tokens_per_step = share.size + sum(folder.max_length for folder in folders)
        most_tokens = -(-most_tokens_per_step // share.micro_batches_per_step) + longest
        usual_tokens = most_tokens

    shape = shape_for(usual_tokens, tokens / rows, longest, recipe.predicted_share, padded=batch.shape == "padded")
    return replace(shape, most_tokens=max(most_tokens, shape.tokens))


def usual_row_tokens(folders: list[PairFolder], share: RankShare) -> int:
    """Return a number of tokens that a micro-batch rarely exceeds by more than one row.

    It is the micro-batch's part of a global batch of mean size plus four standard deviations. Row lengths are taken
    from the folders' manifests.
    """
    rows, tokens, squares = moments(rows_by_length(folder.manifest for folder in folders))
    mean = tokens / rows
    deviation = max(0.0, squares / rows - mean**2) ** 0.5
    tokens_of_step = share.size * mean + 4 * share.size**0.5 * deviation
    return int(tokens_of_step / share.micro_batches_per_step)
