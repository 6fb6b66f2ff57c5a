"""Runs all adaptation steps in order; the entry point is `run_steps`.

    DIR/steps.json    which steps are finished, and the inputs of each
    DIR/general       the run of general.recipe and its export (absent with general.folder)
    DIR/domain        see adapt.py
    DIR/task          see adapt.py
    DIR/finetune      the output of `clozeline finetune`

All steps run in this process, on all ranks of a launcher. Each step reads the files that the previous one wrote, also
when the command is started again. Rank 0 alone runs the pipeline's jobs and the exports, each in a separate process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.errors import UsageError
from schemas.manifest import read_manifest
from trainer.checkpoint.run_lock import held
from trainer.config.load import load_recipe
from trainer.config.parse import apply_overrides
from trainer.config.schema import Recipe
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.process_group import start_distributed
from trainer.distributed.stop import StopRequest
from trainer.finetune.files.read import read_task_data
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.inputs import INPUTS_FILE
from trainer.finetune.opening import check_folder, open_tokenizer
from trainer.finetune.run import Order, finetune
from trainer.finetune.shared_inputs import agreed, read_on_all_ranks
from trainer.finetune.steps.adapt import (
    JOB_TIMEOUT_SECONDS,
    AdaptStep,
    adapt,
    check_step,
    export_run,
    on_rank_0,
    restored_arithmetic,
)
from trainer.finetune.steps.record import MadeWith, StepRecord, hash_of
from trainer.finetune.steps.schema import GeneralSection, Steps
from trainer.finetune.steps.step_recipe import changed_content
from trainer.finetune.steps.steps_file import content_of_recipe
from trainer.finetune.steps.text import task_texts
from trainer.finetune.task import Task
from trainer.finetune.task_file import data_folder, read_task
from trainer.logs import logger
from trainer.models.families import check_memory
from trainer.train import pretrain

GENERAL = "general"
FINETUNE = "finetune"


@dataclass(frozen=True)
class Plan:
    """The steps to run.

    output: DIR. data: the folder of the task's files. made_with: by name, for each step that has a folder in DIR.
    """

    steps: Steps
    output: Path
    task: Task
    data: str
    adapt_steps: list[AdaptStep]
    made_with: dict[str, MadeWith]

    @property
    def general(self) -> GeneralSection:
        assert self.steps.general is not None  # read_steps puts FOLDER of the command line there
        return self.steps.general

    @property
    def first_encoder(self) -> str:
        """The folder of the encoder that the first adaptation step continues."""
        return self.general.folder or str(self.output / GENERAL / "hf")


def run_steps(steps: Steps, output: str, stop: StopRequest) -> None:
    """Run all steps that are not finished. A collective call.

    output: DIR. Raises UsageError and DataError for invalid steps before anything runs, PreemptedError after a stop
    request once everything is saved, and the errors of training, of exports and of the pipeline's jobs.
    """
    plan = read_on_all_ranks(lambda: plan_of(steps, Path(output)), stop)
    start_distributed(JOB_TIMEOUT_SECONDS, stop)
    agreed(lambda: {"what the steps begin with (encoder, recipes, text)": hash_of(plan.made_with)})

    with contextlib.ExitStack() as resources:
        record: StepRecord | None = run_on_rank_0(lambda: _opened(plan, resources))

        folder = plan.first_encoder
        if plan.general.recipe is not None:
            with _step(plan, record, GENERAL) as is_due:
                if is_due:
                    train_general(plan, stop)

        check_encoder(plan, folder)
        for step in plan.adapt_steps:
            with _step(plan, record, step.name) as is_due:
                if is_due:
                    adapt(step, folder, stop)
            folder = str(step.encoder)

        fine_tuning = steps.finetune
        seeds = range(fine_tuning.first_seed, fine_tuning.first_seed + fine_tuning.seeds)
        with _step(plan, record, FINETUNE, always=True):
            finetune(Order(folder, plan.task, plan.data, str(plan.output / FINETUNE), list(seeds)), stop)


# The plan


def plan_of(steps: Steps, output: Path) -> Plan:
    """Read and check everything that the steps name. Raises UsageError and DataError for steps that cannot run."""
    task = read_task(steps.finetune.task, steps.finetune.set)
    data = data_folder(steps.finetune.task, steps.finetune.data)
    examples = read_task_data(task, data)

    adapt_steps: list[AdaptStep] = []
    if steps.domain is not None:
        has_pairs = steps.domain.pairs is not None
        sources = steps.domain.pairs if has_pairs else steps.domain.corpus
        listed = tuple(sources) if isinstance(sources, list) else (str(sources),)
        adapt_steps.append(AdaptStep("domain", steps.domain, output / "domain", None, listed, has_pairs))
    if steps.task is not None:
        texts = task_texts(examples.train, task.name)
        adapt_steps.append(AdaptStep("task", steps.task, output / "task", texts))

    plan = Plan(steps, output, task, data, adapt_steps, {})
    if plan.general.folder is not None:
        check_encoder(plan, plan.general.folder)
    else:
        general_recipe(plan)
    return Plan(steps, output, task, data, adapt_steps, made_with_of(plan))


def check_encoder(plan: Plan, folder: str) -> None:
    """Raise UsageError or DataError if an encoder cannot be fine-tuned on the task, or a step cannot continue it."""
    check_folder(folder, plan.task.kind)
    open_tokenizer(folder, plan.task.kind)
    for step in plan.adapt_steps:
        check_step(step, folder)


def made_with_of(plan: Plan) -> dict[str, MadeWith]:
    """Return for each step the inputs that determine its result, without secrets.

    "encoder" is a hash of the inputs of the step before it, so a change reaches all later steps.
    """
    made_with: dict[str, MadeWith] = {}
    general = plan.general
    if general.folder is not None:
        before: Any = fingerprint_of(general.folder)
    else:
        content = content_of_recipe(str(general.recipe))
        apply_overrides(content, general.set)
        before = made_with[GENERAL] = {"recipe": content}

    for step in plan.adapt_steps:
        section = step.section
        before = made_with[step.name] = {
            "encoder": hash_of(before),
            "recipe": changed_content(section) | {"epochs": section.epochs},
            "text": text_identity(step),
            "way to make pairs": _without_workers(section.shard) | _without_workers(section.make_pairs),
        }

    made_with[FINETUNE] = {"encoder": hash_of(before)}
    return made_with


def text_identity(step: AdaptStep) -> str:
    """Return a hash of a step's text. A corpus is identified by its patterns only, not by the contents of its files."""
    if step.has_pairs:
        return hash_of([read_manifest(folder, "pairs").fingerprint for folder in step.pairs])
    return hash_of(step.texts, step.sources)


def _without_workers(flags: Any) -> dict[str, Any]:
    """Return the flags of a job that affect its result. The number of worker processes does not."""
    return flags.model_dump(exclude={"direct_num_workers"}, exclude_none=True)


# Running it


def _opened(plan: Plan, resources: contextlib.ExitStack) -> StepRecord:
    """Lock DIR until `resources` close, and return its record. Raises UsageError if DIR holds something else."""
    if (plan.output / INPUTS_FILE).exists():
        raise UsageError(f"--output {plan.output} holds a fine-tuning without steps. Choose another folder.")
    resources.enter_context(held(plan.output))

    record = StepRecord(plan.output)
    record.check(plan.made_with)
    return record


@contextlib.contextmanager
def _step(plan: Plan, record: StepRecord, name: str, always: bool = False) -> Iterator[bool]:
    """Record that a step begins and, after the block, that it is finished. A collective call.

    Yields whether the step must be run. always: run the step even if it is finished, because the step itself skips what
    is already done.
    """
    made_with = plan.made_with[name]
    is_due = always or not run_on_rank_0(lambda: record.is_finished(name))
    if is_due:
        logger.info("Step %s: %s", name, plan.output / name)
        run_on_rank_0(lambda: record.write(name, made_with, finished=False))

    yield is_due

    if is_due:
        run_on_rank_0(lambda: record.write(name, made_with, finished=True))


def train_general(plan: Plan, stop: StopRequest) -> None:
    """Train the recipe of [general] and export it. A collective call."""
    recipe = general_recipe(plan)
    with restored_arithmetic():
        pretrain(recipe, stop)
    stop.training_ends()
    run = Path(recipe.run.output)
    on_rank_0(lambda progress: export_run(run, plan.output / GENERAL / "hf", stop, progress))


def general_recipe(plan: Plan) -> Recipe:
    """Return the recipe of [general], whose run goes to DIR/general/run. Raises UsageError."""
    general = plan.general
    recipe = load_recipe(str(general.recipe), [*general.set, f"run.output={plan.output / GENERAL / 'run'}"])
    check_memory(recipe, str(general.recipe))
    return recipe
