"""An encoder with its pretraining heads: masked language modeling (MLM), at the masked tokens only, and pair labels.

Projecting onto the vocabulary only at masked tokens saves 85% of the head's work, which is a fifth of BERT-base's total
work at length 128. The last layer, too, is computed only where a head reads it. Losses are returned as sums, because
the divisor depends on the whole global batch.

Shape suffixes: K masked tokens, S sequences, R = S + K (or K) rows of the last layer, D hidden size, E embedding size,
V vocabulary, P vocabulary with padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.encoder import ACTIVATIONS, Encoder, build_norm
from trainer.models.shape import EncoderShape
from trainer.models.xlnet import TwoStreamEncoder

PLACE_KINDS = ("masked", "kept", "random")
"""What the model sees at a token to predict: [MASK], the token itself, or a random other token.

Under 80/10/10 a model first learns to copy the kept tokens. The mean over all places then falls while nothing is
learned from context, and only `mlm_loss_masked` tells the two apart. Only masked LMs have these kinds, and ELECTRA's
generator: causal language modeling and XLNet never put another token in the place of one to predict.
"""

PLACE_SUMS = 3 * len(PLACE_KINDS)
"""The number of sums over all kinds: of each the loss, correct predictions and number of places."""


class Losses(NamedTuple):
    """Sums over a micro-batch, in float32.

    mlm_sum, mlm_correct: cross-entropy and number of correct predictions over masked tokens. pair_sum, pair_correct:
    the same over sequences with a pair label. rtd_sum, rtd_correct: the same for replaced-token detection, over all
    real tokens. replaced: how many of these were replaced. These three are None except in ELECTRA. places_33: loss,
    correct predictions and count of the masked tokens by what the model sees there (rows as
    in PLACE_KINDS), without a gradient. None if the objective does not use [MASK].
    """

    mlm_sum: Tensor
    mlm_correct: Tensor
    pair_sum: Tensor
    pair_correct: Tensor
    rtd_sum: Tensor | None = None
    rtd_correct: Tensor | None = None
    replaced: Tensor | None = None
    places_33: Tensor | None = None

    def stacked(self) -> Tensor:
        """Return the sums as (SUMS,) float64 without a gradient, with 0 for those that are None."""
        zero = torch.zeros_like(self.mlm_sum)
        *sums, places_33 = self
        sums_7 = torch.stack([zero if value is None else value for value in sums]).detach().double()

        places_9 = sums_7.new_zeros(PLACE_SUMS) if places_33 is None else places_33.flatten()
        return torch.cat([sums_7, places_9])

    def total(self) -> Tensor:
        """Return the sum of all losses, for a backward pass whose values do not matter."""
        total = self.mlm_sum + self.pair_sum
        return total if self.rtd_sum is None else total + self.rtd_sum


SUMS = len(Losses._fields) - 1 + PLACE_SUMS
"""The number of sums: one for each field of `Losses`, but 3 by 3 for the last field."""


VOCABULARY_MULTIPLE = {"cuda": 64}
"""The head pads the vocabulary to a multiple of this number, by device type.

Rows of logits are aligned to 4 bytes with BERT's 30,522 tokens and to 2 with RoBERTa's 50,265, but tensor cores need 16
to be fast. Padding copies the embeddings once per micro-batch: 47 MB in BERT-base, 0.03 ms compared with 10 ms for the
whole head. CPUs gain nothing from it.
"""


class MaskedLMHead(nn.Module):
    """A dense layer, an activation and a norm, if the family has them, and a projection onto the vocabulary."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        width = shape.embedding_size
        self.dense = nn.Linear(shape.hidden_size, width, bias=shape.head_dense_bias) if shape.head_transform else None
        self.norm = build_norm(width, shape) if shape.head_transform else None
        self.bias = nn.Parameter(torch.zeros(shape.vocab_size)) if shape.decoder_bias else None
        self.decoder = None if shape.tied else nn.Linear(width, shape.vocab_size, bias=False)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x_KD: Tensor, embedding_VE: Tensor) -> Tensor:
        """Return the (K, V) logits, or (K, P) if the vocabulary is padded to P tokens; logits of padding are -inf.

        embedding_VE: the encoder's table of embeddings, which is the projection of a tied head.
        """
        x_KE = x_KD
        if self.dense is not None and self.norm is not None:
            x_KE = self.norm(self.activation(self.dense(x_KD)))
        projection_VE = embedding_VE if self.decoder is None else self.decoder.weight

        padding = padding_of_vocabulary(len(projection_VE), x_KD.device.type)
        if padding == 0:
            return F.linear(x_KE, projection_VE, self.bias)

        # A logit of -inf adds exp(-inf) = 0 to the softmax's sum, gets no gradient, and is never the largest.
        projection_PE = F.pad(projection_VE, (0, 0, 0, padding))
        bias_V = x_KE.new_zeros(len(projection_VE)) if self.bias is None else self.bias
        bias_P = F.pad(bias_V, (0, padding), value=float("-inf"))
        return F.linear(x_KE, projection_PE, bias_P)


def padding_of_vocabulary(vocabulary_size: int, device: str) -> int:
    """Return how many padding tokens the head adds to a vocabulary on a device of this type, such as "cuda"."""
    return -vocabulary_size % VOCABULARY_MULTIPLE.get(device, 1)


class PretrainingModel(nn.Module):
    """A family's model for pretraining. `forward` returns losses, and `logits` the logits they are computed from."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.shape = shape
        self.encoder = TwoStreamEncoder(shape) if shape.two_streams else Encoder(shape)
        self.mlm_head = MaskedLMHead(shape)
        self.pair_head = nn.Linear(shape.hidden_size, 2) if shape.pair_head else None

    def logits(self, batch: PackedBatch) -> tuple[Tensor, Tensor | None]:
        """Return (K, V) logits at the masked tokens, and (S, 2) for the pairs, or None without a pair head."""
        mlm_KP, pair_S2 = self._logits_at(self._rows(batch), len(batch.masked_positions_K))
        return mlm_KP[:, : self.shape.vocab_size], pair_S2

    def forward(self, batch: PackedBatch) -> Losses:
        """Return the losses, summed over the micro-batch."""
        mlm, pair_sum, pair_correct = self.heads(self._rows(batch), batch.labels_K, batch.pair_labels_S)
        return Losses(mlm.loss, mlm.correct, pair_sum, pair_correct, places_33=sums_by_place(batch, mlm))

    def heads(self, x_RD: Tensor, labels_K: Tensor, pair_labels_S: Tensor) -> tuple[Predictions, Tensor, Tensor]:
        """Return the masked LM's predictions, and the sums of pair losses and of correct pairs. x_RD: from `_rows`.

        torch.compile compiles this as one region.
        """
        mlm_KP, pair_S2 = self._logits_at(x_RD, len(labels_K))
        mlm = predictions(mlm_KP, labels_K)
        if pair_S2 is None:
            return mlm, torch.zeros_like(mlm.loss), torch.zeros_like(mlm.loss)

        pairs = predictions(pair_S2, pair_labels_S)
        return mlm, pairs.loss, pairs.correct

    def _rows(self, batch: PackedBatch) -> Tensor:
        """Return the last layer where heads read it, (R, D): first tokens if there is a pair head, then masked ones."""
        first_tokens = batch.sequence_starts_S if self.pair_head is not None else batch.sequence_starts_S[:0]
        return self.encoder(batch, torch.cat([first_tokens, batch.masked_positions_K]))

    def _logits_at(self, x_RD: Tensor, masked: int) -> tuple[Tensor, Tensor | None]:
        """Return (K, P) logits at the last `masked` rows, and (S, 2) at those before, or None without a pair head."""
        first_SD, masked_KD = x_RD.split([len(x_RD) - masked, masked])
        mlm_KP = self.mlm_head(masked_KD, self.encoder.embeddings.token.weight)
        if self.pair_head is None:
            return mlm_KP, None
        return mlm_KP, self.pair_head(self.encoder.pool(first_SD))  # type: ignore[operator]

    def compile_parts(self, backend: str = "inductor") -> None:
        """Let torch.compile fuse the operations of the embeddings, of each layer, and of the heads with their losses.

        Each batch shape is compiled separately. Parts are compiled instead of the whole model, because layers of one
        shape share their compiled code: 24 take as long to compile as one.
        """
        self.encoder.compile_parts(backend)
        self.heads = torch.compile(self.heads, dynamic=False, backend=backend)

    def encoders(self) -> list[Encoder | TwoStreamEncoder]:
        """Return the model's encoders, starting with the one that is used after pretraining."""
        return [self.encoder]

    def assign_weights(self, weights: dict[str, Tensor]) -> None:
        """Use these tensors as the model's weights, by name. Raises RuntimeError unless all names and shapes match."""
        names = [name for name, _ in self.named_parameters()]
        if sorted(names) != sorted(weights):
            raise RuntimeError(f"other weights than the model's: {sorted(set(names) ^ set(weights))}")
        # Not strict, because a shared module has several names, and `weights` holds only the first one.
        self.load_state_dict(weights, strict=False, assign=True)

    def labeled_pairs(self, batch: PackedBatch) -> int:
        """Return the number of sequences that the pair loss sums over: 0 in a family without a pair head."""
        return batch.paired if self.pair_head is not None else 0


class Predictions(NamedTuple):
    """How well logits predict labels.

    loss, correct: float32 sums of cross-entropy and correct predictions over the rows that have a label. losses_N,
    right_N: the same for each row, float32 and bool, without a gradient; losses of unlabeled rows are meaningless.
    """

    loss: Tensor
    correct: Tensor
    losses_N: Tensor
    right_N: Tensor


def predictions(logits_NC: Tensor, labels_N: Tensor) -> Predictions:
    """Return how well (N, C) logits predict (N,) labels. Rows labeled IGNORE_INDEX have no label."""
    # The two steps of F.cross_entropy, taken separately because the first also gives each row's loss at no extra cost.
    log_probs_NC = F.log_softmax(logits_NC.float(), dim=-1)
    loss = F.nll_loss(log_probs_NC, labels_N, reduction="sum", ignore_index=IGNORE_INDEX)

    places_N1 = labels_N.clamp(min=0)[:, None]
    losses_N = -log_probs_NC.detach().gather(1, places_N1).squeeze(1)
    right_N = logits_NC.argmax(-1) == labels_N  # no prediction equals IGNORE_INDEX
    return Predictions(loss, right_N.sum().float(), losses_N, right_N)


@torch.no_grad()
def sums_by_place(batch: PackedBatch, mlm: Predictions) -> Tensor | None:
    """Return `Losses.places_33` of a batch, (3, 3) float64, or None without [MASK]. Copies nothing to the host."""
    if batch.mask_id is None:
        return None

    labels_K = batch.labels_K
    seen_K = batch.ids_T[batch.masked_positions_K]
    is_masked_K = (seen_K == batch.mask_id) & (labels_K != IGNORE_INDEX)
    is_kept_K = seen_K == labels_K
    is_random_K = (labels_K != IGNORE_INDEX) & ~is_masked_K & ~is_kept_K

    kinds_3K = torch.stack([is_masked_K, is_kept_K, is_random_K])
    values_3K = torch.stack([mlm.losses_N.double(), mlm.right_N.double(), torch.ones_like(mlm.losses_N).double()])
    # where() instead of a product with zeros and ones, which would spread a loss that is not finite to all kinds.
    return torch.where(kinds_3K[:, None], values_3K, 0).sum(-1)
