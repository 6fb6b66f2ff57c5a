"""Attention with relative positions and segments, for the two streams of XLNet, on packed batches.

The score of query i and key j is, with q, k and r the projections of a query, a key and a distance:

    (q_i + r_w_bias) . k_j  +  (q_i + r_r_bias) . r_(i - j)  +  (q_i + r_s_bias) . seg_embed[segments differ]

divided by sqrt(d). The keys that a query sees follow from the order of prediction (trainer/data/permutations.py): those
whose order is below max(the query's order, 0), where tokens that all others see have order -1. The content stream has a
query at every token, which also sees itself. The query stream has one at each target, which does not see itself. Both
read the keys and values of the content stream.

The second and third terms are passed to torch's attention as a bias that is added to its scores, which flash attention
does not support. As in attention.py, GPUs compute all sequences in a padded grid, and CPUs one sequence after the
other. Both are a `Grid` here; on CPUs it has a single row.

Shape suffixes: T tokens, K targets, S rows of a grid, L tokens of its longest sequence, M its largest number of
targets, A queries (L or M), H heads, d head size, P = 2 L distances, from L - 1 down to -L.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trainer.models.batch import PackedBatch, SequenceOffsets


class RelativeTerms(NamedTuple):
    """The terms of the scores besides queries and keys: projected distances and segments, and the biases of queries.

    distances_HPd: for the longest sequence of the batch; a shorter one uses those in the middle. segments_H2d: for keys
    in the query's own segment, and for keys in other segments.
    """

    distances_HPd: Tensor
    segments_H2d: Tensor
    word_bias_H1d: Tensor
    distance_bias_H1d: Tensor
    segment_bias_H1d: Tensor


class Queries(NamedTuple):
    """Which keys the queries of one stream see, and how the two are related.

    visible_S1AL, differs_S1AL: bool: whether a query sees a key, and whether their segments differ.
    columns_S1AL: for each query and key, the index of their distance among P. None in the content stream, where query a
        is at place a, so that the indices follow a fixed pattern.
    sees_any_S1A1: bool: whether a query sees any key; None if every query does.
    """

    visible_S1AL: Tensor
    differs_S1AL: Tensor
    columns_S1AL: Tensor | None = None
    sees_any_S1A1: Tensor | None = None


@dataclass(frozen=True)
class Grid:
    """Sequences side by side, padded to L tokens and M targets.

    token_places_T, target_places_K: where the packed tokens and targets lie in the grid, counted row by row. None for a
    single sequence, whose tokens and targets are slices of the packed ones.
    tokens, targets: the slice as (first, count). In a padded grid, first is 0, and count is L or M.
    """

    content: Queries
    query: Queries
    rows: int
    tokens: tuple[int, int]
    targets: tuple[int, int]
    token_places_T: Tensor | None = None
    target_places_K: Tensor | None = None

    def spread_tokens(self, x_THd: Tensor) -> Tensor:
        """Return the vectors of packed tokens in the grid, (S, H, L, d)."""
        return self._spread(x_THd, self.tokens, self.token_places_T)

    def spread_targets(self, x_KHd: Tensor) -> Tensor:
        """Return the vectors of packed targets in the grid, (S, H, M, d)."""
        return self._spread(x_KHd, self.targets, self.target_places_K)

    def _spread(self, x_NHd: Tensor, part: tuple[int, int], places_N: Tensor | None) -> Tensor:
        first, number = part
        if places_N is None:
            return x_NHd.narrow(0, first, number).transpose(0, 1)[None]

        # Places that no token takes stay zero.
        zeros = x_NHd.new_zeros(self.rows * number, *x_NHd.shape[1:])
        return zeros.index_copy(0, places_N, x_NHd).unflatten(0, (self.rows, number)).transpose(1, 2)

    def collect_tokens(self, y_SHLd: Tensor) -> Tensor:
        """Return the outputs of this grid's tokens in packed order, heads concatenated: (tokens of the grid, H * d)."""
        return _collect(y_SHLd, self.token_places_T)

    def collect_targets(self, y_SHMd: Tensor) -> Tensor:
        """Return the same for this grid's targets, (targets of the grid, H * d)."""
        return _collect(y_SHMd, self.target_places_K)


def _collect(y_SHAd: Tensor, places_N: Tensor | None) -> Tensor:
    y_NHd = y_SHAd.transpose(1, 2).flatten(0, 1)
    if places_N is not None:
        y_NHd = y_NHd.index_select(0, places_N)
    return y_NHd.flatten(1)


# Which queries see which keys


def grids_of(batch: PackedBatch) -> list[Grid]:
    """Return the grids in which a batch is computed: one on GPUs, and one per sequence on CPUs.

    The targets are the first `predicted` of the batch's masked positions; the others are padding.
    """
    offsets = SequenceOffsets(batch)
    order_T = torch.full_like(batch.ids_T, -1) if batch.order_T is None else batch.order_T
    if batch.ids_T.device.type == "cuda":
        return [_padded_grid(batch, offsets, order_T)]
    return _single_sequences(batch, offsets, order_T)


def _single_sequences(batch: PackedBatch, offsets: SequenceOffsets, order_T: Tensor) -> list[Grid]:
    targets_K = batch.masked_positions_K[: batch.predicted]
    ends_S = offsets.ends_S1[1 : len(offsets.lengths) + 1].long()
    targets_before_S = torch.searchsorted(targets_K, ends_S).tolist()

    grids = []
    start = 0
    first_target = 0
    for length, last_target in zip(offsets.lengths, targets_before_S, strict=True):
        order_1L = order_T[None, start : start + length]
        segments_1L = batch.segments_T[None, start : start + length]
        is_token_1L = torch.ones_like(order_1L, dtype=torch.bool)
        places_1M = targets_K[None, first_target:last_target] - start

        content, query = _queries(order_1L, segments_1L, is_token_1L, places_1M)
        tokens = (start, length)
        targets = (first_target, last_target - first_target)
        grids.append(Grid(content, query, 1, tokens, targets))
        start += length
        first_target = last_target
    return grids


def _padded_grid(batch: PackedBatch, offsets: SequenceOffsets, order_T: Tensor) -> Grid:
    rows = len(batch.sequence_starts_S)
    longest = offsets.longest
    targets_K = batch.masked_positions_K[: batch.predicted]
    row_K = batch.sequence_T[targets_K]

    # Number the targets within each row. Targets are in row order, so a row's first one comes after those of all
    # earlier rows, whose number is the running sum of their counts.
    counts_S = torch.zeros(rows, dtype=torch.int64, device=row_K.device).index_add_(0, row_K, torch.ones_like(row_K))
    number_K = torch.arange(len(row_K), device=row_K.device) - (counts_S.cumsum(0) - counts_S)[row_K]
    # Reading the maximum from the device would wait for the device, so batches usually carry it.
    most_targets = batch.most_targets or int(counts_S.max())

    token_places_T = offsets.grid_places_T
    target_places_K = row_K * most_targets + number_K

    def in_grid(values_N: Tensor, places_N: Tensor, columns: int) -> Tensor:
        return values_N.new_zeros(rows * columns).index_copy(0, places_N, values_N).view(rows, columns)

    content, query = _queries(
        in_grid(order_T, token_places_T, longest),
        in_grid(batch.segments_T, token_places_T, longest),
        in_grid(torch.ones_like(order_T, dtype=torch.bool), token_places_T, longest),
        in_grid(batch.positions_T[targets_K], target_places_K, most_targets),
    )
    return Grid(content, query, rows, (0, longest), (0, most_targets), token_places_T, target_places_K)


def _queries(order_SL: Tensor, segments_SL: Tensor, is_token_SL: Tensor, places_SM: Tensor) -> tuple[Queries, Queries]:
    """Return the queries of the content stream and of the query stream.

    places_SM: the positions of the targets in their sequences.
    """
    longest = order_SL.shape[1]
    places_L = torch.arange(longest, device=order_SL.device)

    def visible(order_SA: Tensor) -> Tensor:
        return (order_SL[:, None, :] < order_SA.clamp(min=0)[:, :, None]) & is_token_SL[:, None, :]

    def differs(segments_SA: Tensor) -> Tensor:
        return (segments_SA[:, :, None] != segments_SL[:, None, :])[:, None]

    is_itself_LL = places_L[:, None] == places_L[None, :]
    content = Queries((visible(order_SL) | is_itself_LL)[:, None], differs(segments_SL))

    # A target that comes first in a row without context sees no key. Softmax would then give NaN, so such a query is
    # made to see all keys, and `attend_relatively` sets its output to zero.
    visible_SML = visible(order_SL.gather(1, places_SM))
    sees_any_SM1 = visible_SML.any(-1, keepdim=True)
    query = Queries(
        visible_S1AL=(visible_SML | ~sees_any_SM1)[:, None],
        differs_S1AL=differs(segments_SL.gather(1, places_SM)),
        columns_S1AL=(longest - 1 + places_L - places_SM[:, :, None])[:, None],
        sees_any_S1A1=sees_any_SM1[:, None],
    )
    return content, query


# Attention itself


def attend_relatively(
    q_SHAd: Tensor, keys_and_values: tuple[Tensor, Tensor], queries: Queries, terms: RelativeTerms, dropout: float
) -> Tensor:
    """Return the attention outputs of the queries of one stream, (S, H, A, d).

    keys_and_values: (S, H, L, d) each. dropout: the probability of dropping an attention weight.
    """
    k_SHLd, v_SHLd = keys_and_values
    longest = k_SHLd.shape[2]
    scale = q_SHAd.shape[-1] ** -0.5

    distances_SHAL = _distance_scores((q_SHAd + terms.distance_bias_H1d) * scale, queries, terms, longest)
    segments_SHA2 = ((q_SHAd + terms.segment_bias_H1d) * scale) @ terms.segments_H2d.transpose(1, 2)
    same_SHA1, other_SHA1 = segments_SHA2.split(1, dim=-1)
    bias_SHAL = distances_SHAL + torch.where(queries.differs_S1AL, other_SHA1, same_SHA1)
    bias_SHAL = bias_SHAL.masked_fill(~queries.visible_S1AL, float("-inf"))

    y_SHAd = F.scaled_dot_product_attention(
        q_SHAd + terms.word_bias_H1d, k_SHLd, v_SHLd, attn_mask=bias_SHAL, dropout_p=dropout
    )
    if queries.sees_any_S1A1 is None:
        return y_SHAd
    return y_SHAd * queries.sees_any_S1A1


def _distance_scores(q_SHAd: Tensor, queries: Queries, terms: RelativeTerms, longest: int) -> Tensor:
    """Return (S, H, A, L): each query's product with its distance to each key."""
    middle = terms.distances_HPd.shape[1] // 2
    distances_HPd = terms.distances_HPd[:, middle - longest : middle + longest]
    scores_SHAP = q_SHAd @ distances_HPd.transpose(1, 2)
    if queries.columns_S1AL is not None:
        return scores_SHAP.gather(-1, queries.columns_S1AL.expand(-1, scores_SHAP.shape[1], -1, -1))

    # The distance of query a and key j is in column L - 1 + j - a. In the flattened (A, P) scores, that is element
    # a * P + L - 1 + j - a = (L - 1) + a * (P - 1) + j. So the result is a view with rows of P - 1 elements that begins
    # L - 1 elements later.
    shorter = 2 * longest - 1
    flat = scores_SHAP.flatten(2).narrow(2, longest - 1, longest * shorter)
    return flat.unflatten(2, (longest, shorter))[..., :longest]
