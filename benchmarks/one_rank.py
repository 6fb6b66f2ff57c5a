"""Builds a small model on this process as the only rank, and small pairs to train it on, for training.py."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import deepspeed

from trainer.config.schema import Recipe
from trainer.data.folder import PairFolder, open_folders
from trainer.data.share import RankShare, share_of
from trainer.data.stream import Stream, build_stream
from trainer.engine import build_engine
from trainer.models.batch import PackedBatch
from trainer.models.pretraining import build_model


def make_pairs(out: Path) -> None:
    """Make a small version of the demo's data in `out`: a vocabulary of 4,000 tokens, and rows of up to 64 tokens."""
    job = f"{sys.executable} -m pipeline"
    commands = (
        f"{sys.executable} deploy/demo/corpus.py {out}/corpus.jsonl --megabytes 2",
        f"{job} shard --input {out}/corpus.jsonl --output {out}/text",
        f"{job} vocab --text {out}/text --output {out}/vocab --model wordpiece --size 4000",
        f"{job} pairs --text {out}/text --vocab {out}/vocab --output {out}/pairs --objective nsp --max_length 64",
    )
    for command in commands:
        subprocess.run(command.split(), check=True, stdout=subprocess.DEVNULL)


@dataclass(frozen=True)
class Model:
    """A model that is ready to train on its recipe's pairs, with this process as the only rank."""

    recipe: Recipe
    folders: list[PairFolder]
    share: RankShare
    engine: deepspeed.DeepSpeedEngine

    def open_stream(self) -> Stream:
        return build_stream(self.recipe, self.folders, self.share)


def make_model(recipe: Recipe) -> Model:
    folders = open_folders(recipe)
    share = share_of(recipe, 0, 1, folders)
    model = build_model(recipe.model, folders[0].vocabulary.size, 0)
    return Model(recipe, folders, share, build_engine(model, recipe, share))


def read_ahead(model: Model, steps: int) -> list[list[PackedBatch]]:
    with contextlib.closing(model.open_stream()) as stream:
        return [stream.batch(step) for step in range(steps)]
