"""Whether transformers computes from an exported folder what we compute: its logits and ours on a few rows.

Its tokenizer must load, too, and give each token the id that the model was trained with.

The one place of the trainer that imports transformers, and only where it is installed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from schemas.errors import CheckpointError
from schemas.randomness import key
from schemas.vocabulary import Vocabulary
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import PretrainingModel

LARGEST_DIFFERENCE = 1e-4
"""Of the largest logit, if that is above 1: some ten times what float32 rounds in 24 layers."""
LENGTHS = (1, 5, 17, 40)  # tokens in the rows that are compared


def check_export(folder: Path, model: PretrainingModel, vocabulary: Vocabulary) -> float | None:
    """The largest difference of logits, None where transformers is not installed.

    Raises CheckpointError when it is above the limit, or when the tokenizer is not the vocabulary's.
    """
    if find_spec("transformers") is None:
        return None
    check_tokenizer(folder, vocabulary)
    from transformers import AutoModelForPreTraining

    theirs = AutoModelForPreTraining.from_pretrained(folder, dtype=torch.float32).eval()
    found = max(difference(theirs, model, row) for row in sample_rows(model, vocabulary))
    if not found <= LARGEST_DIFFERENCE:  # also when it is not a number
        raise CheckpointError(
            f"The exported model is not the checkpoint's: transformers' logits differ from ours by {found:.1e} of "
            f"the largest, expected at most {LARGEST_DIFFERENCE:.0e}. Nothing was published. Try the version of "
            "transformers in constraints.txt, and report this."
        )
    return found


def check_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """Raises CheckpointError when AutoTokenizer cannot load the folder or gives a token another id."""
    from transformers import AutoTokenizer

    try:
        ids = AutoTokenizer.from_pretrained(folder).get_vocab()
    except Exception as error:  # whatever a damaged file makes of it
        raise CheckpointError(
            f"transformers cannot load the exported tokenizer ({type(error).__name__}: {error}). Nothing was "
            "published. Put the files of the run's vocabulary/ back from the folder of pairs."
        ) from error

    expected = {token: i for i, token in enumerate(vocabulary.tokens)}
    wrong = sorted(token for token in {*ids, *expected} if ids.get(token) != expected.get(token))
    if wrong:
        first = wrong[0]
        raise CheckpointError(
            f"The exported tokenizer gives {len(wrong):,} tokens other ids than the model was trained with: "
            f"{first!r} is {ids.get(first)}, expected {expected.get(first)}. Nothing was published. Put the files of "
            "the run's vocabulary/ back from the folder of pairs."
        )


def sample_rows(model: PretrainingModel, vocabulary: Vocabulary) -> list[PackedBatch]:
    """Rows of random tokens with every place to predict, one a batch; half of each is segment B."""
    generator = torch.Generator().manual_seed(key(0, "rows to compare") >> 1)
    ordinary_ids = torch.from_numpy(vocabulary.ordinary_ids.copy())  # the vocabulary's own array is read-only
    longest = model.shape.positions - model.shape.first_position
    return [
        one_row_batch(
            ordinary_ids[torch.randint(len(ordinary_ids), (length,), generator=generator)], model.shape.type_vocab_size
        )
        for length in (min(length, longest) for length in LENGTHS)
    ]


def one_row_batch(ids_T: Tensor, segments: int) -> PackedBatch:
    places_T, one = torch.arange(len(ids_T)), torch.zeros(1, dtype=torch.int64)
    return PackedBatch(
        ids_T=ids_T,
        segments_T=(places_T >= len(ids_T) // 2).long() * (segments - 1),
        positions_T=places_T,
        sequence_T=torch.zeros_like(ids_T),
        sequence_starts_S=one,
        longest=len(ids_T),
        masked_positions_K=places_T,
        labels_K=ids_T,
        pair_labels_S=one,
        tokens=len(ids_T),
        predicted=len(ids_T),
        paired=1,
    )


@torch.inference_mode()
def difference(theirs: Any, ours: PretrainingModel, batch: PackedBatch) -> float:
    """Largest absolute difference of the two models' logits, in parts of the largest logit if that is above 1."""
    segments = {} if ours.shape.type_vocab_size == 1 else {"token_type_ids": batch.segments_T[None]}
    output = theirs(input_ids=batch.ids_T[None], attention_mask=torch.ones_like(batch.ids_T[None]), **segments)
    mlm_KV, pair_S2 = ours.logits(batch)
    expected = [mlm_KV[None]] if pair_S2 is None else [mlm_KV[None], pair_S2]
    pairs = zip(output.to_tuple()[: len(expected)], expected, strict=True)
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1)) for a, b in pairs)
