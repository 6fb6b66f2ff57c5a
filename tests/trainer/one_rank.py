"""A process group of one rank and small engines, inside the process of a test; and ranks that are threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import deepspeed.comm.comm as deepspeed_comm
import torch
import torch.distributed as dist
from deepspeed import DeepSpeedEngine
from deepspeed.utils import groups
from torch import Tensor, nn
from torch.nn import functional

from trainer.config.load import load_recipe
from trainer.config.schema import Recipe
from trainer.data.share import RankShare
from trainer.engine import build_engine, send_weights
from trainer.models.batch import PackedBatch
from trainer.models.starting_weights import build_model

VOCABULARY = 61
SIZES = [
    "num_hidden_layers=1",
    "hidden_size=8",
    "num_attention_heads=2",
    "intermediate_size=16",
    "max_position_embeddings=12",
    "hidden_dropout_prob=0",
]


@contextmanager
def group_of_one() -> Iterator[None]:
    """A gloo group of this process alone, gone at the end of the `with` block.

    Without DeepSpeed's communication kernels, which another process may be compiling and a rank alone never uses.
    """
    known_groups = {name: value for name, value in vars(groups).items() if name.startswith("_") and name.isupper()}
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    threads = torch.get_num_threads()
    linear = functional.linear
    torch.set_num_threads(1)  # more of them mostly wait in models as small as these
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "DS_ACCELERATOR": "cpu"}
    try:
        with patch.dict(os.environ, ranks), patch("deepspeed.comm.torch.build_shm_op", return_value=None):
            yield
    finally:
        dist.destroy_process_group()
        deepspeed_comm.cdb = None
        for name, value in known_groups.items():
            setattr(groups, name, value)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_num_threads(threads)
        functional.linear = linear  # DeepSpeed's stage 3 puts its own in this place and leaves it there


def small_recipe(*settings: str) -> Recipe:
    sizes = [f"model.{size}" for size in SIZES]
    return load_recipe("tests/recipes/small_bert.toml", [*sizes, "optimizer.clip=0", *settings])


def small_engine(recipe: Recipe, micro_batches: int = 1, seed: int = 0) -> DeepSpeedEngine:
    """An engine that makes an update after so many micro-batches."""
    model = build_model(recipe.model, VOCABULARY, seed)
    return filled_engine(model, recipe, RankShare(0, 1, micro_batches, 2 * micro_batches))


def filled_engine(model: nn.Module, recipe: Recipe, share: RankShare) -> DeepSpeedEngine:
    """An engine that trains a model from the weights that it has. A collective call."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    engine = build_engine(model.to("meta"), recipe, share)
    send_weights(engine, iter(weights.items()) if share.rank == 0 else None)
    return engine


def small_batch(number: int, rows: int = 2, length: int = 12, masked: int = 5) -> PackedBatch:
    """Rows of `length` tokens, of which `masked` are to be predicted."""
    generator = torch.Generator().manual_seed(number)
    places = torch.arange(rows * length)
    return PackedBatch(
        ids_T=torch.randint(0, VOCABULARY, (rows * length,), generator=generator),
        segments_T=(places % length >= length // 2).long(),
        positions_T=places % length,
        sequence_T=places // length,
        sequence_starts_S=torch.arange(rows) * length,
        longest=length,
        masked_positions_K=torch.randperm(rows * length, generator=generator)[:masked].sort().values,
        labels_K=torch.randint(0, VOCABULARY, (masked,), generator=generator),
        pair_labels_S=torch.randint(0, 2, (rows,), generator=generator),
        tokens=rows * length,
        predicted=masked,
        paired=rows,
    )


class ThreadedRanks:
    """What the trainer asks of `torch.distributed`, for ranks that are threads of one process.

    exchanged: how many elements each rank received in each exchange.
    """

    def __init__(self, ranks: int):
        self._ranks = ranks
        self._here = threading.local()
        self._barrier = threading.Barrier(ranks, timeout=20)
        self._sent: list[Sequence[Tensor]] = [()] * ranks
        self._objects: list[Any] = [None] * ranks
        self.exchanged: list[int] = []

    def get_rank(self) -> int:
        return self._here.rank

    def get_world_size(self) -> int:
        return self._ranks

    def all_to_all_single(
        self, output_N: Tensor, input_N: Tensor, output_counts: list[int], input_counts: list[int], group: Any = None
    ) -> None:
        self._sent[self.get_rank()] = input_N.split(input_counts)
        self._barrier.wait()
        coming = [lots[self.get_rank()] for lots in self._sent]
        assert [len(values_N) for values_N in coming] == output_counts
        output_N.copy_(torch.cat(coming))
        self.exchanged.append(len(output_N))
        self._barrier.wait()

    def all_gather_object(self, outputs: list[Any], own: Any, group: Any = None) -> None:
        self._objects[self.get_rank()] = own
        self._barrier.wait()
        outputs[:] = self._objects
        self._barrier.wait()

    def run(self, act: Callable[[int], Any]) -> list[Any]:
        """What `act(rank)` returned or raised in each thread, by rank."""
        results: list[Any] = [None] * self._ranks

        def one(rank: int) -> None:
            self._here.rank = rank
            try:
                results[rank] = act(rank)
            except Exception as error:
                results[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self._ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results
