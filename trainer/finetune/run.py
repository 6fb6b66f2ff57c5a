"""Fine-tunes an encoder on a task with several seeds; the entry point is `finetune`.

    OUTPUT/task.toml                 the task with all its values
    OUTPUT/identity.json             hashes of the task, the encoder and the data that the folder belongs to
    OUTPUT/seed-0/metrics.jsonl      one line per epoch
    OUTPUT/seed-0/predictions_*.jsonl
    OUTPUT/results.json              scores of all seeds, and their mean, interval, median and quartiles
    OUTPUT/report.html
    OUTPUT/hf                        the best epoch of the best seed, in the Hugging Face format

Finished seeds are kept, so the same command continues after a stop, and a larger --seeds adds seeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

from schemas.errors import UsageError
from trainer.distributed.collectives import run_on_rank_0
from trainer.distributed.process_group import device_of_rank, start_distributed
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.threads import cores_of_rank, kept_threads, spare_busy_cores
from trainer.distributed.watchdog import Watchdog
from trainer.finetune.data_facts import log_data, paths_by_set
from trainer.finetune.determinism import make_deterministic
from trainer.finetune.evaluation import ExampleSet, predict
from trainer.finetune.examples import TaskData
from trainer.finetune.files.read import read_task_data
from trainer.finetune.identity import NAMES, identity_of, recorded, threads_of
from trainer.finetune.job import DEV, TEST, Job
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.kinds.table import kind_of
from trainer.finetune.metrics.metric_table import unsuitable
from trainer.finetune.opening import check_folder, longest_row, open_tokenizer, read_config
from trainer.finetune.outcome import write_outcome, write_predictions
from trainer.finetune.output import check_is_local, claimed
from trainer.finetune.results import SeedResult, read_seed_result, write_seed_result
from trainer.finetune.scores import all_labeled, finished, score
from trainer.finetune.seed_files import remove_states, write_metrics
from trainer.finetune.shared_inputs import TIMEOUT_SECONDS, agreed, read_on_all_ranks
from trainer.finetune.task import Task
from trainer.finetune.training import SeedTraining
from trainer.logs import logger
from trainer.run_context import watch_ranks


@dataclass(frozen=True)
class Order:
    """A fine-tuning as the command line asks for it.

    folder: the encoder's folder. data: the folder of the task's files. output: the output folder. new_head: whether a
    head that the folder has is replaced in any case.
    """

    folder: str
    task: Task
    data: str
    output: str
    seeds: Sequence[int]
    random_weights: bool = False
    new_head: bool = False


def finetune(order: Order, stop_request: StopRequest) -> list[SeedResult]:
    """Train and score all seeds. A collective call; every rank gets the results.

    Raises DataError or UsageError before training for invalid inputs, PreemptedError if the run was asked to stop and
    its state is saved, DivergedError for a loss that is not finite, and StorageError for files that cannot be read or
    written.
    """
    inputs = read_on_all_ranks(lambda: read_inputs(order), stop_request)

    make_deterministic()
    start_distributed(TIMEOUT_SECONDS, stop_request)
    spare_busy_cores()
    with contextlib.ExitStack() as resources, watch_ranks(TIMEOUT_SECONDS) as watchdog:
        watchdog.at("comparing the files of all ranks")
        first_weights = "random" if order.random_weights else "new head" if order.new_head else "of the encoder"
        identity = agreed(lambda: identity_of(order.task, order.folder, inputs.data, first_weights), NAMES)
        output = Path(order.output)
        threads = kept_threads(run_on_rank_0(lambda: threads_of(output)), cores_of_rank())
        run_on_rank_0(lambda: resources.enter_context(claimed(output, identity | recorded(threads), order.task)))

        stop = resources.enter_context(contextlib.closing(StopAgreement(stop_request, 2 * TIMEOUT_SECONDS)))
        stop.training_begins()

        watchdog.at("encoding the examples")
        job = open_job(order, inputs, stop, watchdog)
        log_data(job)
        results = [finished_seed(job, seed) for seed in order.seeds]

        watchdog.at("writing the results")
        run_on_rank_0(lambda: write_outcome(job))
    return results


@dataclass(frozen=True)
class Inputs:
    """The files that an order names, read and checked."""

    kind: Kind[Any, Any]
    data: TaskData


def read_inputs(order: Order) -> Inputs:
    """Read the files that an order names. Raises DataError, UsageError and StorageError."""
    check_is_local(order.output)
    check_folder(order.folder, order.task.kind)
    tokenizer = open_tokenizer(order.folder, order.task.kind)
    data = read_task_data(order.task, order.data)
    check_metrics(order.task, data.labels)

    kind = kind_of(order.task, data.labels, tokenizer, longest_row(read_config(order.folder)))
    kind.check_room()
    return Inputs(kind, data)


def check_metrics(task: Task, labels: Sequence[str]) -> None:
    """Raise UsageError if a metric does not fit the labels, which may be known only from the training set."""
    for metric in task.metrics:
        reason = unsuitable(metric, task.kind, task.is_regression, len(labels) if labels else None)
        if reason is not None:
            raise UsageError(f'metrics has "{metric}", which {reason}. The labels are {", ".join(labels)}.')


def open_job(order: Order, inputs: Inputs, stop: StopAgreement, watchdog: Watchdog) -> Job:
    """Return the job of an order, with the examples of all sets encoded as features."""
    data = inputs.data
    kind = inputs.kind

    sets: dict[str, Any] = {DEV: data.dev, **data.extra}
    if data.test is not None:
        sets[TEST] = data.test
    return Job(
        task=order.task,
        files=paths_by_set(order.task, order.data),
        folder=order.folder,
        output=Path(order.output),
        random_weights=order.random_weights,
        new_head=order.new_head,
        kind=kind,
        train=ExampleSet(data.train, kind.training_features(data.train)),
        others={name: ExampleSet(examples, kind.features(examples)) for name, examples in sets.items()},
        device=device_of_rank(),
        stop=stop,
        watchdog=watchdog,
    )


def finished_seed(job: Job, seed: int) -> SeedResult:
    """Return a seed's result, after training the seed if it is not finished. A collective call."""
    folder = job.folder_of_seed(seed)
    earlier_result = run_on_rank_0(lambda: read_seed_result(folder))
    if earlier_result is not None:
        logger.info("Seed %d is finished already, so it is not trained again.", seed)
        run_on_rank_0(lambda: remove_states(folder))
        return earlier_result

    training = SeedTraining(job, seed)
    training.train()
    scores, threshold = scored_sets(job, seed, training.load_best())

    progress = training.progress
    assert progress.best is not None
    result = SeedResult(
        seed=seed,
        epoch=progress.best + 1,
        epochs=progress.epochs,
        scores=scores,
        threshold=threshold if threshold is not None and isfinite(threshold) else None,
        seconds=progress.seconds,
    )
    run_on_rank_0(lambda: write_metrics(folder, progress))
    run_on_rank_0(lambda: write_seed_result(folder, result))
    run_on_rank_0(lambda: remove_states(folder))
    return result


def scored_sets(job: Job, seed: int, model: Any) -> tuple[dict[str, dict[str, float]], float | None]:
    """Predict all sets but the training set, and write the predictions. A collective call.

    Returns the scores of labeled sets, by set and then by metric, and the null threshold, None for kinds other than
    span.
    """
    scores: dict[str, dict[str, float]] = {}
    threshold: float | None = None

    for name, examples in job.others.items():
        job.watchdog.at(f"seed {seed}, predicting {name}")
        predictions = predict(model, job.kind, examples, job.watchdog.progress)

        # The dev set comes first, because the threshold chosen on it applies to all other sets.
        if name == DEV:
            threshold = job.threshold(predictions)
        final = finished(predictions, threshold)

        if all_labeled(examples.examples):
            scores[name] = score(job.kind, examples.examples, final)
        run_on_rank_0(partial(write_predictions, job.folder_of_seed(seed), name, job, final))
    return scores, threshold
