"""ELECTRA: a small masked LM, the generator, and a discriminator that detects which tokens the generator replaced.

Both are trained together, from scratch, on the sum of two losses (arXiv:2003.10555). The generator learns from its
masked-LM loss alone, because no gradient of the discriminator's loss passes through the sampled tokens. The two share
their token, position and segment embeddings and the norm after them. Only the discriminator is used afterwards.

The two are exported to separate Hugging Face folders: the discriminator to the folder itself, as transformers'
ElectraForPreTraining, and the generator to a subfolder, as ElectraForMaskedLM. Both hold the shared embeddings.

Replacements are drawn from the generator's softmax. google-research/electra adds Gumbel noise to every logit and takes
the largest, which needs a random number for each token of the vocabulary. Inverting the cumulative distribution gives
the same distribution from a single number, which comes with the batch (with_replacement_draws in
trainer/data/batches.py). So a draw depends only on the row, its epoch and the position.

Shape suffixes: T tokens, K masked tokens, D the discriminator's hidden size, V vocabulary, P vocabulary with padding, B
blocks of the vocabulary, W tokens of a block, N places to choose from.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from trainer.models.batch import IGNORE_INDEX, PackedBatch
from trainer.models.encoder import ACTIVATIONS, Embeddings, Encoder
from trainer.models.families import GENERATOR_FOLDER
from trainer.models.pretraining import Losses, Predictions, PretrainingModel, predictions, sums_by_place
from trainer.models.shape import EncoderShape
from trainer.models.xlnet import TwoStreamEncoder

BLOCK = 64
"""Tokens in a block. First a block is drawn, then a token in it, so running sums have hundreds of terms, not tens of
thousands."""

KEY_BITS = 63
"""The bits of a draw, which is below 2**63, because torch does not compute with unsigned 64-bit numbers."""

DRAW_BITS = 31
"""The bits of each of the two numbers that a draw is cut into: the upper one for the block, the lower for the token."""


class Discriminator(nn.Module):
    """An encoder with a head of two matrices that gives each token one logit. Above 0 means that it was replaced."""

    def __init__(self, shape: EncoderShape, embeddings: Embeddings):
        """embeddings: the generator's, which the two share."""
        super().__init__()
        self.shape = shape
        self.encoder = Encoder(shape)
        self.encoder.embeddings = embeddings
        self.dense = nn.Linear(shape.hidden_size, shape.hidden_size)
        self.prediction = nn.Linear(shape.hidden_size, 1)
        self.activation = ACTIVATIONS[shape.activation]

    def logits(self, batch: PackedBatch) -> tuple[Tensor, None]:
        """Return the (T,) logits of the batch's tokens, which are not replaced here, and None for the pair logits."""
        return self.head(self.encoder(batch)), None

    def head(self, x_TD: Tensor) -> Tensor:
        """Compute (T, D) -> (T,)."""
        return self.prediction(self.activation(self.dense(x_TD))).squeeze(-1)


class ReplacedTokenModel(PretrainingModel):
    """The generator, which is a masked LM, and the discriminator. `encoder` and `mlm_head` are the generator's."""

    def __init__(self, shape: EncoderShape):
        """shape: the discriminator's, which contains the generator's."""
        assert shape.generator is not None
        super().__init__(shape.generator)
        self.shape = shape
        assert isinstance(self.encoder, Encoder), "the generator has one stream"
        self.discriminator = Discriminator(shape, self.encoder.embeddings)

    def forward(self, batch: PackedBatch) -> Losses:
        """Return the losses, summed over the micro-batch, which must have `draws_K`."""
        assert batch.draws_K is not None
        mlm, sampled_K = self.generate(self._rows(batch), batch.labels_K, batch.draws_K)

        seen, replaced_T = replace_tokens(batch, sampled_K)
        is_real_T = torch.arange(len(batch.ids_T), device=sampled_K.device) < batch.tokens
        x_TD = self.discriminator.encoder(seen)
        rtd_sum, rtd_correct, replaced = self.detect(x_TD, replaced_T, is_real_T)

        # `batch` has the tokens that the generator saw. `seen` has its replacements, which have no place kind.
        places_33 = sums_by_place(batch, mlm)
        no_pairs = torch.zeros_like(mlm.loss)
        return Losses(mlm.loss, mlm.correct, no_pairs, no_pairs, rtd_sum, rtd_correct, replaced, places_33)

    def generate(self, x_KD: Tensor, labels_K: Tensor, draws_K: Tensor) -> tuple[Predictions, Tensor]:
        """Return the masked LM's predictions, and the (K,) sampled ids. torch.compile compiles this as one region."""
        mlm_KP, _ = self._logits_at(x_KD, len(labels_K))
        mlm = predictions(mlm_KP, labels_K)
        sampled_K = sample_from_softmax(mlm_KP.detach(), draws_K)
        # Only logits that are not finite can give an id beyond the vocabulary, which the embeddings could not look up.
        return mlm, sampled_K.clamp(max=self.shape.vocab_size - 1)

    def detect(self, x_TD: Tensor, replaced_T: Tensor, is_real_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the cross-entropy, correct predictions and replaced tokens, summed over the real tokens, in float32.

        is_real_T: False for padding, which is not counted. torch.compile compiles this as one region.
        """
        logits_T = self.discriminator.head(x_TD).float()
        losses_T = F.binary_cross_entropy_with_logits(logits_T, replaced_T.float(), reduction="none")
        is_right_T = (logits_T > 0) == replaced_T
        sums = [torch.where(is_real_T, values_T, 0).sum() for values_T in (losses_T, is_right_T, replaced_T)]
        return sums[0], sums[1].float(), sums[2].float()

    def encoders(self) -> list[Encoder | TwoStreamEncoder]:
        return [self.discriminator.encoder, self.encoder]

    def compile_parts(self, backend: str = "inductor") -> None:
        """Let torch.compile fuse the operations of the embeddings, of each layer, and of both heads and losses."""
        self.encoder.compile_parts(backend)
        for layer in self.discriminator.encoder.layers:
            layer.compile(dynamic=False, backend=backend)
        self.generate = torch.compile(self.generate, dynamic=False, backend=backend)
        self.detect = torch.compile(self.detect, dynamic=False, backend=backend)


def generator_of(model: ReplacedTokenModel) -> PretrainingModel:
    """Return the generator as a separate model that shares its weights with `model`."""
    with torch.device("meta"):
        generator = PretrainingModel(model.encoder.shape)
    generator.encoder = model.encoder
    generator.mlm_head = model.mlm_head
    return generator.train(model.training)


@torch.no_grad()
def sample_from_softmax(logits_KP: Tensor, draws_K: Tensor) -> Tensor:
    """Return token ids, (K,) int64, each with the probability that the softmax of its logits gives it.

    draws_K: int64, uniform in [0, 2**63). If logits are not finite, the ids are arbitrary, but not negative, and may be
    P or more. Takes a quarter of the time of Gumbel noise: 0.10 s compared with 0.38 s for 614 tokens of a vocabulary
    of 30,522 on one core, where computing the logits takes 0.13 s.
    """
    probabilities_KP = logits_KP.float().softmax(-1)

    # Cut the vocabulary into whole blocks. Padding in the last one has probability 0.
    missing = -probabilities_KP.shape[1] % BLOCK
    probabilities_KBW = F.pad(probabilities_KP, (0, missing)).unflatten(1, (-1, BLOCK))

    # The upper bits of a draw choose a block, and the lower bits a token in it.
    upper_bits_K = draws_K >> (KEY_BITS - DRAW_BITS)
    lowest_bits_K = draws_K & ((1 << DRAW_BITS) - 1)

    block_K = _choose(probabilities_KBW.sum(-1), upper_bits_K)
    rows_K = torch.arange(len(draws_K), device=draws_K.device)
    token_K = _choose(probabilities_KBW[rows_K, block_K], lowest_bits_K)
    return block_K * BLOCK + token_K


def _choose(weights_KN: Tensor, draws_K: Tensor) -> Tensor:
    """Return one place per row, (K,) int64, with probability proportional to its weight. draws_K: of DRAW_BITS bits."""
    # Integer sums do not depend on their order, so they are reproducible on a GPU, too.
    shares_KN = weights_KN / weights_KN.sum(-1, keepdim=True)
    whole_KN = (shares_KN * 2.0**DRAW_BITS).round().long()
    ends_KN = whole_KN.cumsum(-1)
    totals_K = ends_KN[:, -1]

    # Scale the draw from [0, 2**DRAW_BITS) to [0, total), and choose the first place whose running sum is above it.
    # Both factors have at most about DRAW_BITS bits, so the product fits into 63.
    targets_K = draws_K * totals_K >> DRAW_BITS
    chosen_K = (ends_KN <= targets_K[:, None]).sum(-1)
    return chosen_K.clamp(max=weights_KN.shape[1] - 1)  # which matters only for weights that are not finite


def replace_tokens(batch: PackedBatch, sampled_K: Tensor) -> tuple[PackedBatch, Tensor]:
    """Return the batch as the discriminator sees it, and which tokens are replaced, (T,) bool.

    The sampled tokens take the places of the masked ones. One that equals the original does not count as replaced.
    """
    tokens = len(batch.ids_T)

    # Masked positions that only pad the batch are written to an extra place after the last token, which is cut off.
    is_real_K = batch.labels_K != IGNORE_INDEX
    places_K = torch.where(is_real_K, batch.masked_positions_K, tokens)
    ids_T = F.pad(batch.ids_T, (0, 1)).scatter(0, places_K, sampled_K)[:tokens]

    unchanged_T1 = torch.zeros(tokens + 1, dtype=torch.bool, device=ids_T.device)
    replaced_T = unchanged_T1.scatter(0, places_K, sampled_K != batch.labels_K)[:tokens]
    return replace(batch, ids_T=ids_T), replaced_T


PartModel = PretrainingModel | Discriminator


def parts_of(model: PretrainingModel) -> dict[str, PartModel]:
    """Return a model's parts, which share its weights, by their subfolders in the Hugging Face folder, "" first."""
    if not isinstance(model, ReplacedTokenModel):
        return {"": model}
    return {"": model.discriminator, GENERATOR_FOLDER: generator_of(model)}
