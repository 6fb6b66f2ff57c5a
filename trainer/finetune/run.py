"""Fine-tunes an encoder on a task with several seeds; the entry point is `finetune`.

    OUTPUT/task.toml                 the task with all its values
    OUTPUT/inputs.json               the task, and hashes of the encoder and the data, that the folder belongs to
    OUTPUT/seed-0/result.json        scores of the seed; its existence marks the seed as finished
    OUTPUT/seed-0/metrics.jsonl      one line per epoch
    OUTPUT/seed-0/predictions_*.jsonl
    OUTPUT/seed-0/checkpoint-*       what a stopped command resumes from, until the seed is finished
    OUTPUT/seed-0/hf                 the best epoch of the seed, until OUTPUT/hf has the best of all seeds
    OUTPUT/results.json              scores of all seeds, and their mean, interval, median and quartiles
    OUTPUT/report.html
    OUTPUT/hf                        the best epoch of the best seed, in the Hugging Face format

Finished seeds are kept, so the same command continues after a stop, and a larger --seeds adds seeds.
"""

from __future__ import annotations

import contextlib
import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from schemas.terminal import counted
from trainer.checkpoint.run_lock import held
from trainer.distributed.collectives import run_on_rank_0, succeed_on_all_ranks
from trainer.distributed.process_group import device_of_rank, start_distributed
from trainer.distributed.stop import StopAgreement, StopRequest
from trainer.distributed.threads import Threads, cores_of_rank, kept_threads, spare_busy_cores
from trainer.finetune.arguments import training_arguments
from trainer.finetune.checkpoints import remove_checkpoints
from trainer.finetune.data_facts import log_data
from trainer.finetune.determinism import make_deterministic
from trainer.finetune.examples import Example, TaskData
from trainer.finetune.files.sets import named_files
from trainer.finetune.fit import FinetuneTrainer
from trainer.finetune.inputs import (
    TIMEOUT_SECONDS,
    agreed,
    check_inputs,
    fingerprint_of,
    read_inputs_of,
    read_on_all_ranks,
)
from trainer.finetune.job import FeatureSet, Job, Order
from trainer.finetune.kinds import kind_of
from trainer.finetune.kinds.kind import Kind
from trainer.finetune.model import build_model, write_model
from trainer.finetune.opening import check_folder, longest_row, open_tokenizer, read_config
from trainer.finetune.outcome import write_outcome, write_predictions
from trainer.finetune.results import SeedResult, read_seed_result, write_seed_result
from trainer.finetune.scores import check_metrics_of_labels
from trainer.finetune.task import DEV, TEST, TRAIN, Task
from trainer.finetune.task_file import dump_task
from trainer.logs import logger
from trainer.micro_batches import device_name, noting_out_of_memory
from trainer.run_context import watch_ranks

CHANGED = "Undo the change to continue it, choose another --output, or remove that folder."
"""What to do about an output folder with results of other inputs."""


def finetune(order: Order, stop_request: StopRequest) -> list[SeedResult]:
    """Train and score all seeds. A collective call; every rank gets the results.

    Raises DataError or UsageError before training for invalid inputs, PreemptedError after a stop whose state is saved,
    DivergedError for a loss that is not finite, and StorageError for files that cannot be read or written.
    """
    kind = read_on_all_ranks(lambda: opened_kind(order), stop_request)
    order = with_values(order)

    make_deterministic()
    start_distributed(TIMEOUT_SECONDS, stop_request)
    spare_busy_cores()
    # A rank that is alone waits for no other, and one of its steps may take long.
    limit = TIMEOUT_SECONDS if dist.get_world_size() > 1 else inf
    with contextlib.ExitStack() as resources, watch_ranks(limit) as watchdog:
        watchdog.at("comparing the files of all ranks")
        inputs = agreed(lambda: inputs_of(order, dist.get_world_size()))
        succeed_on_all_ranks(lambda: arguments_of(order.task, order.output))
        threads = kept_threads(run_on_rank_0(lambda: threads_of(order.output)), cores_of_rank())
        run_on_rank_0(lambda: check_inputs(order.output, inputs, CHANGED))
        run_on_rank_0(lambda: resources.enter_context(held(order.output)))
        stop = resources.enter_context(contextlib.closing(StopAgreement(stop_request, 2 * TIMEOUT_SECONDS)))
        stop.training_begins()

        watchdog.at("encoding the examples")
        job = Job(
            **vars(order),
            inputs=inputs | {"threads": threads._asdict()},
            kind=kind,
            train=FeatureSet(order.examples.train, kind.features(order.examples.train), for_training=True),
            others={name: FeatureSet(found, kind.features(found)) for name, found in scored(order.examples).items()},
            stop=stop,
            watchdog=watchdog,
        )
        log_data(job)
        results = [finished_seed(job, seed) for seed in order.seeds]

        watchdog.at("writing the results")
        run_on_rank_0(lambda: write_outcome(job))
    return results


def with_values(order: Order) -> Order:
    """Return the order with the learning rate and epochs of its training. Logs those that the task does not give."""
    examples = len(order.examples.train)
    width = getattr(read_config(order.folder), "hidden_size", 768)  # a few families have no such key
    given, task = order.task.training, order.task.for_encoder(width, examples)
    if given.lr is None:
        logger.info("training.lr is %g, for an encoder that is %d wide.", task.training.lr, width)
    if given.epochs is None:
        logger.info("training.epochs is %d, for %s.", task.training.epochs, counted(examples, "example"))
    return replace(order, task=task)


def opened_kind(order: Order) -> Kind:
    """Return the kind of an order's task, for its encoder. Raises UsageError if they do not fit each other."""
    check_folder(order.folder, order.task.kind)
    tokenizer = open_tokenizer(order.folder, order.task.kind)
    check_metrics_of_labels(order.task, order.examples.labels)
    return kind_of(order.task, order.examples.labels, tokenizer, longest_row(read_config(order.folder)))


def inputs_of(order: Order, ranks: int) -> dict[str, Any]:
    """Return what results depend on, except the seed: values, hashes of files, and the number of ranks."""
    # How often checkpoints are saved changes no result.
    content = tomllib.loads(dump_task(order.task))
    content["training"].pop("save_every")

    sets = {TRAIN: order.examples.train, **scored(order.examples)}
    head = "its own where the labels fit"
    if order.random_weights or order.new_head:
        head = "random"
    return {
        "task": content,
        "encoder": fingerprint_of(order.folder),
        "weights": "random" if order.random_weights else "of the encoder",
        "head": head,
        "ranks": ranks,
        "labels": list(order.examples.labels),
        "examples": {
            f"{name} ({', '.join(named_files(order.task.data, name))})": hash_of(examples)
            for name, examples in sets.items()
        },
    }


def scored(data: TaskData) -> dict[str, list[Example]]:
    """Return the examples of the sets that get predictions, by name, the dev set first."""
    test = {} if data.test is None else {TEST: data.test}
    return {DEV: data.dev, **test, **data.extra}


def hash_of(examples: Sequence[Example]) -> str:
    """Return a hash of examples, as 16 hex digits.

    Hashes one example at a time: building one string of a whole dataset would double its memory.
    """
    digest = hashlib.sha256()
    for example in examples:
        digest.update(f"{example!r}\n".encode())
    return digest.hexdigest()[:16]


def threads_of(output: Path) -> Threads:
    """Return the threads that the fine-tuning in a folder began with; none in a new folder.

    They decide the last bits of results, so a fine-tuning that continues keeps them.
    """
    recorded = (read_inputs_of(output) or {}).get("threads", {})
    return Threads(int(recorded.get("number", 0)), int(recorded.get("cores", 0)))


def arguments_of(task: Task, folder: Path, seed: int = 0) -> Any:
    """Return Trainer's arguments on this rank. folder: of a seed."""
    return training_arguments(task, folder, seed, dist.get_world_size(), device_of_rank().type == "cpu")


def finished_seed(job: Job, seed: int) -> SeedResult:
    """Return a seed's result, after training the seed if it is not finished. A collective call."""
    folder = job.folder_of_seed(seed)
    earlier_result = run_on_rank_0(lambda: read_seed_result(folder))
    if earlier_result is not None:
        logger.info("Seed %d is finished already, so it is not trained again.", seed)
        run_on_rank_0(lambda: remove_checkpoints(folder))
        return earlier_result

    with noting_out_of_memory(lambda: too_large_batch(device_of_rank())):
        model = succeed_on_all_ranks(lambda: build_model(job, seed))
        trainer = FinetuneTrainer(job, seed, model, arguments_of(job.task, folder, seed))
        trainer.fit()
        scores = scored_sets(job, seed, trainer)
    result = SeedResult(
        seed=seed,
        epoch=trainer.best_epoch,
        epochs=trainer.epochs,
        scores=scores,
        threshold=trainer.threshold if isfinite(trainer.threshold) else None,
        seconds=trainer.seconds,
    )
    run_on_rank_0(lambda: write_model(folder, trainer.model, job.folder, job.task.kind))
    run_on_rank_0(lambda: write_seed_result(folder, result))
    run_on_rank_0(lambda: remove_checkpoints(folder))
    return result


def too_large_batch(device: torch.device) -> str:
    return (
        f"out of memory on {device_name(device)}. Lower training.batch or training.max_length, raise "
        "trainer.gradient_accumulation_steps, or, if it ran out in a prediction, lower "
        "trainer.per_device_eval_batch_size, for which a new --output is needed. The same command continues."
    )


def scored_sets(job: Job, seed: int, trainer: FinetuneTrainer) -> dict[str, dict[str, float]]:
    """Predict all sets but the training set, and write the predictions. A collective call.

    Returns the scores of labeled sets, by set and then by metric.
    """
    scores: dict[str, dict[str, float]] = {}
    for name in job.others:
        job.watchdog.at(f"seed {seed}, predicting {name}")
        of_set, final = trainer.scored(name)
        if of_set:
            scores[name] = of_set
        run_on_rank_0(partial(write_predictions, job.folder_of_seed(seed), name, job, final))
    return scores
