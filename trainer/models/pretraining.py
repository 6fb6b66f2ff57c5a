"""An encoder with its pretraining heads: masked language modeling (MLM), at the masked tokens only, and pair labels.

Projecting onto the vocabulary only where a token was masked saves 85% of the head's work, a fifth of all of BERT-base's
at length 128. The last layer, too, is computed only where a head reads it. Losses are returned as sums, because what to
divide them by depends on the whole global batch.

Shape suffixes: K masked tokens, S sequences, R = S + K (or K) rows of the last layer, D hidden size, E embedding size,
V vocabulary, P vocabulary with padding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.encoder import ACTIVATIONS, Encoder, build_norm
from trainer.models.families import encoder_shape
from trainer.models.init_weights import initialize
from trainer.models.place_kinds import PLACE_SUMS
from trainer.models.shape import EncoderShape
from trainer.models.xlnet import TwoStreamEncoder

if TYPE_CHECKING:
    from trainer.config.schema import ModelSection


class Losses(NamedTuple):
    """Sums over a micro-batch, in float32.

    mlm_sum and mlm_correct: cross-entropy and right predictions over the masked tokens. pair_sum and pair_correct: the
    same over the sequences that have a pair label. rtd_sum and rtd_correct: the same over all real tokens, each of
    which is replaced or not, and replaced: how many are. These three are None in a model that does not detect that.
    places_33: the masked tokens by what the model sees there: rows as in PLACE_KINDS, columns as in PlaceSums. None if
    the batch does not replace tokens by [MASK]. No gradient goes through it.
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
        """Return the sums as (SUMS,) float64 without a gradient, 0 for those that the model does not have."""
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
"""How many sums there are: a number for each field of `Losses`, and 3 by 3 for the last one."""


VOCABULARY_MULTIPLE = {"cuda": 64}
"""What the vocabulary is padded to a multiple of inside the head, by device.

BERT's 30,522 tokens make rows of 4-byte alignment, RoBERTa's 50,265 of 2, and matrix units need 16 to be fast. Padding
copies the embeddings once for each micro-batch: 47 MB of BERT-base's, which is 0.03 ms beside the 10 ms of the head.
CPUs gain nothing from it.
"""


class MaskedLMHead(nn.Module):
    """A dense layer, an activation, a norm, and a projection onto the vocabulary, as far as the family has them."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        width = shape.embedding_size
        self.dense = nn.Linear(shape.hidden_size, width, bias=shape.head_dense_bias) if shape.head_transform else None
        self.norm = build_norm(width, shape) if shape.head_transform else None
        self.bias = nn.Parameter(torch.zeros(shape.vocab_size)) if shape.decoder_bias else None
        self.decoder = None if shape.tied else nn.Linear(width, shape.vocab_size, bias=False)
        self.activation = ACTIVATIONS[shape.activation]

    def forward(self, x_KD: Tensor, embedding_VE: Tensor) -> Tensor:
        """Return the (K, V) logits, or (K, P) if the vocabulary is padded to P tokens, whose logits are -inf.

        embedding_VE: the encoder's table of embeddings, the projection of a tied head.
        """
        x_KE = x_KD
        if self.dense is not None and self.norm is not None:
            x_KE = self.norm(self.activation(self.dense(x_KD)))
        projection_VE = embedding_VE if self.decoder is None else self.decoder.weight

        padding = padding_of_vocabulary(len(projection_VE), x_KD.device.type)
        if padding == 0:
            return F.linear(x_KE, projection_VE, self.bias)

        # A logit of -inf is exp(-inf) = 0 in the softmax's sum, has no gradient, and is never the largest.
        projection_PE = F.pad(projection_VE, (0, 0, 0, padding))
        bias_V = x_KE.new_zeros(len(projection_VE)) if self.bias is None else self.bias
        bias_P = F.pad(bias_V, (0, padding), value=float("-inf"))
        return F.linear(x_KE, projection_PE, bias_P)


def padding_of_vocabulary(vocabulary_size: int, device: str) -> int:
    """Return how many tokens without meaning the head adds to a vocabulary on a device of this type."""
    return -vocabulary_size % VOCABULARY_MULTIPLE.get(device, 1)


class PretrainingModel(nn.Module):
    """A family's model for pretraining: `forward` returns losses, `logits` what they are computed from."""

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
        """Return the masked LM's predictions, and the pairs' two sums, given the last layer where the heads read it.

        Compiled as one region.
        """
        mlm_KP, pair_S2 = self._logits_at(x_RD, len(labels_K))
        mlm = predictions(mlm_KP, labels_K)
        if pair_S2 is None:
            return mlm, torch.zeros_like(mlm.loss), torch.zeros_like(mlm.loss)

        pairs = predictions(pair_S2, pair_labels_S)
        return mlm, pairs.loss, pairs.correct

    def _rows(self, batch: PackedBatch) -> Tensor:
        """Return the last layer where the heads read it, (R, D).

        For the pairs that is the first token of each sequence, and after these come the masked tokens.
        """
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

        Each shape of a batch is compiled separately. Parts instead of the whole: layers of one shape share their code,
        so that 24 take as long to compile as one.
        """
        self.encoder.compile_parts(backend)
        self.heads = torch.compile(self.heads, dynamic=False, backend=backend)  # type: ignore[method-assign]

    def encoders(self) -> list[Encoder | TwoStreamEncoder]:
        """Return the model's encoders, first the one that is used after pretraining."""
        return [self.encoder]

    def assign_weights(self, weights: dict[str, Tensor]) -> None:
        """Let these tensors be the model's weights, by name. Raises RuntimeError unless all are there and fit."""
        names = [name for name, _ in self.named_parameters()]
        if sorted(names) != sorted(weights):
            raise RuntimeError(f"other weights than the model's: {sorted(set(names) ^ set(weights))}")
        # Not strict, because shared modules have several names, of which `weights` has the first.
        self.load_state_dict(weights, strict=False, assign=True)

    def labeled_pairs(self, batch: PackedBatch) -> int:
        """Return how many sequences the pair loss sums over: 0 in a family without a pair head."""
        return batch.paired if self.pair_head is not None else 0


class Predictions(NamedTuple):
    """What logits come to, in float32.

    loss, correct: cross-entropy and number of right predictions, summed over the rows that have a label. losses_N and
    right_N: the same of each row, without a gradient; losses of rows without a label mean nothing.
    """

    loss: Tensor
    correct: Tensor
    losses_N: Tensor
    right_N: Tensor


def predictions(logits_NC: Tensor, labels_N: Tensor) -> Predictions:
    """Return how well logits predict labels, of which IGNORE_INDEX stands for none."""
    # The two halves of F.cross_entropy: the first also has the loss of every row, which costs nothing more.
    log_probs_NC = F.log_softmax(logits_NC.float(), dim=-1)
    loss = F.nll_loss(log_probs_NC, labels_N, reduction="sum", ignore_index=IGNORE_INDEX)

    places_N1 = labels_N.clamp(min=0)[:, None]
    losses_N = -log_probs_NC.detach().gather(1, places_N1).squeeze(1)
    right_N = logits_NC.argmax(-1) == labels_N  # no prediction equals IGNORE_INDEX
    return Predictions(loss, right_N.sum().float(), losses_N, right_N)


@torch.no_grad()
def sums_by_place(batch: PackedBatch, mlm: Predictions) -> Tensor | None:
    """Return `Losses.places_33` of a batch, (3, 3) float64, without copying anything to the host."""
    if batch.mask_id is None:
        return None

    labels_K = batch.labels_K
    seen_K = batch.ids_T[batch.masked_positions_K]
    is_masked_K = (seen_K == batch.mask_id) & (labels_K != IGNORE_INDEX)
    is_kept_K = seen_K == labels_K
    is_random_K = (labels_K != IGNORE_INDEX) & ~is_masked_K & ~is_kept_K

    kinds_3K = torch.stack([is_masked_K, is_kept_K, is_random_K])
    values_3K = torch.stack([mlm.losses_N.double(), mlm.right_N.double(), torch.ones_like(mlm.losses_N).double()])
    # Not a product with zeros and ones: a loss that is not finite would then reach all kinds.
    return torch.where(kinds_3K[:, None], values_3K, 0).sum(-1)


def empty_model(model: ModelSection, vocabulary_size: int, mask_id: int | None = None) -> PretrainingModel:
    """Return a model without weights, on the meta device. mask_id: of [MASK], which some families must know."""
    with torch.device("meta"):
        return model_of(encoder_shape(model, vocabulary_size, mask_id))


def model_of(shape: EncoderShape) -> PretrainingModel:
    """Return the model that has this shape, with weights that mean nothing."""
    from trainer.models.electra import ReplacedTokenModel  # imports this module

    return ReplacedTokenModel(shape) if shape.replaced_tokens else PretrainingModel(shape)


def build_model(model: ModelSection, vocabulary_size: int, seed: int, mask_id: int | None = None) -> PretrainingModel:
    """Return a model on the CPU with initial weights that depend on the seed alone."""
    built = empty_model(model, vocabulary_size, mask_id).to_empty(device="cpu")
    initialize(built, built.shape, model.initializer_range, seed)
    return built
