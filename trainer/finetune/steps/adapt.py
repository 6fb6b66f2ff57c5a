"""Runs one step of continued pretraining: text -> pairs -> a run of the trainer -> a Hugging Face folder.

    DIR/STEP/texts.jsonl    the task's text (only in the step "task")
    DIR/STEP/text           text shards
    DIR/STEP/pairs          pairs, encoded with the encoder's own vocabulary
    DIR/STEP/recipe.toml    the recipe
    DIR/STEP/run            the run: checkpoints, metrics, report
    DIR/STEP/hf             the encoder that the next step starts from

The documented commands write these files. They skip or resume what earlier starts wrote, so an interrupted step
continues when it is run again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from schemas import storage
from schemas.vocabulary import read_vocabulary
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.stop import StopRequest
from trainer.finetune.steps.jobs import run_job
from trainer.finetune.steps.schema import AdaptSection
from trainer.finetune.steps.step_recipe import fitted, max_length_of, step_recipe, validated, write_recipe
from trainer.finetune.steps.text import json_lines
from trainer.models.hf_config import model_of_folder
from trainer.models.hf_files import read_config
from trainer.models.hf_load import check_published_vocabulary
from trainer.run_context import watch_ranks
from trainer.train import pretrain

JOB_TIMEOUT_SECONDS = 600.0
"""How long rank 0 may make no progress while it runs the pipeline's jobs before the watchdog ends the process."""

PAIR_OBJECTIVES = {"domain": "full_sentences", "task": "doc_sentences"}
"""The default objective of each step. Rows have one segment, so only masked tokens are predicted. A row of the step
"task" never joins two examples."""


@dataclass(frozen=True)
class AdaptStep:
    """A step of continued pretraining.

    name: "domain" or "task". output: the step's folder. texts: the texts of the step "task"; None for "domain".
    sources: for the step "domain", its corpus as `shard --input` takes it, or folders of pairs if has_pairs.
    """

    name: str
    section: AdaptSection
    output: Path
    texts: list[str] | None = None
    sources: tuple[str, ...] = ()
    has_pairs: bool = False

    @property
    def run(self) -> Path:
        return self.output / "run"

    @property
    def encoder(self) -> Path:
        """The Hugging Face folder that the step exports."""
        return self.output / "hf"

    @property
    def pairs(self) -> list[str]:
        """The folders of pairs that the step trains on."""
        return list(self.sources) if self.has_pairs else [str(self.output / "pairs")]


def check_step(step: AdaptStep, folder: str) -> None:
    """Raise UsageError or DataError if a step cannot continue the encoder in `folder`. Writes nothing."""
    validated(step_recipe(step.section, folder, step.pairs, str(step.run)), step.section)
    max_length_of(step.section, model_of_folder(folder))
    if step.has_pairs:
        for pairs in step.pairs:
            vocabulary = read_vocabulary(storage.join(pairs, "vocabulary"))
            check_published_vocabulary(read_config(folder), vocabulary, folder)


def adapt(step: AdaptStep, folder: str, stop: StopRequest) -> None:
    """Continue the pretraining of the encoder in `folder` and export it to `step.encoder`. A collective call.

    Raises PreemptedError after a stop request, once everything is saved.
    """
    if not step.has_pairs:
        on_rank_0(lambda progress: make_pairs(step, folder, stop, progress))

    recipe = run_on_rank_0(lambda: final_recipe(step, folder))
    with restored_arithmetic():
        pretrain(recipe, stop)
    stop.training_ends()
    on_rank_0(lambda progress: export_run(step.run, step.encoder, stop, progress))


def on_rank_0(act: Callable[[Callable[[], None]], None]) -> None:
    """Run a long action on rank 0, which reports its progress, while the other ranks wait. A collective call."""
    with watch_ranks(JOB_TIMEOUT_SECONDS) as watchdog:
        watchdog.at("preparing a step")
        run_on_rank_0(lambda: act(watchdog.progress))


def make_pairs(step: AdaptStep, folder: str, stop: StopRequest, progress: Callable[[], None]) -> None:
    """Turn the step's text into pairs, with the same commands that a user would run."""
    section = step.section
    text = step.output / "text"
    source = ",".join(step.sources)
    own_flags: list[str] = []
    if step.texts is not None:
        source = str(step.output / "texts.jsonl")
        write_unless_equal(source, json_lines(step.texts))
        own_flags = ["--format", "jsonl"]

    shard = ["-m", "pipeline", "shard", "--input", source, "--output", str(text)]
    run_job([*shard, *own_flags, *flags_of(section.shard.model_dump(exclude_none=True))], stop, progress)

    flags = {"objective": PAIR_OBJECTIVES[step.name], **section.make_pairs.model_dump(exclude_none=True)}
    flags["max_length"] = max_length_of(section, model_of_folder(folder))
    pairs = ["-m", "pipeline", "pairs", "--text", str(text), "--vocab", folder, "--output", step.pairs[0]]
    run_job([*pairs, *flags_of(flags)], stop, progress)


def write_unless_equal(path: str, content: bytes) -> None:
    """Write a file unless it already has this content, because `shard` treats a file with a newer time as changed."""
    if not storage.exists(path) or storage.read(path) != content:
        storage.publish(path, content)


def flags_of(values: dict[str, Any]) -> list[str]:
    """Return flags as command-line arguments. Example: `{"max_length": 64}` -> `["--max_length", "64"]`."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def final_recipe(step: AdaptStep, folder: str) -> Recipe:
    """Write the step's recipe, which depends on the number of rows in its pairs, and return it."""
    content = step_recipe(step.section, folder, step.pairs, str(step.run))
    content = fitted(content, step.section)
    write_recipe(content, str(step.output / "recipe.toml"))
    return validated(content, step.section)


def export_run(run: Path, encoder: Path, stop: StopRequest, progress: Callable[[], None]) -> None:
    """Export a run, and overwrite what a killed export may have left."""
    run_job(["-m", "trainer.export", str(run), "--output", str(encoder), "--overwrite"], stop, progress)


@contextlib.contextmanager
def restored_arithmetic() -> Iterator[None]:
    """Restore torch's arithmetic settings after the block, because a pretraining run changes them.

    Fine-tuning must not depend on whether an earlier step ran in the same process or in one that was killed.
    """
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
