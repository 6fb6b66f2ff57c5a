"""Probes all layers of an encoder: `python -m trainer.suite.child probe FOLDER --task TASK.toml --output DIR`.

    OUTPUT/results.json   for each layer the task's first metric on the dev set

A logistic regression for each layer is fitted to the vectors of the training set (Alain and Bengio, Understanding
intermediate layers using linear classifier probes, arXiv:1610.01644). Nothing is drawn at random but which examples of
a large training set are used, so there is one score for each layer, and no seeds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas import storage
from schemas.errors import DataError
from schemas.randomness import key
from trainer.command_line import CommandParser, exit_code_of
from trainer.finetune.fingerprint import fingerprint_of
from trainer.finetune.kinds.kind import Feature, Kind
from trainer.finetune.results import RESULTS_FILE
from trainer.finetune.task_file import read_task
from trainer.logs import logger
from trainer.suite.child import device_of_job
from trainer.suite.probe.logistic import Classifier, fit
from trainer.suite.probe.tasks import check_probed

MAX_TRAINING_VECTORS = 20_000
"""With a base model's 13 layers they take 800 MB. More examples change a linear classifier's score little."""


def main(arguments: list[str], prog: str) -> int:
    """Run the command line and return the exit code."""
    flags = CommandParser(prog=prog)
    flags.add_argument("folder")
    for name in ("--task", "--data", "--output"):
        flags.add_argument(name, required=True)
    flags.add_argument("--set", action="append", default=[])
    flags.add_argument("--random_weights", action="store_true")
    return exit_code_of(lambda: probe(flags.parse_args(arguments)))


def probe(options: Any) -> None:
    """Score all layers and write results.json. Raises DataError and UsageError."""
    from trainer.finetune.files.read import read_task_data
    from trainer.finetune.kinds.table import kind_of
    from trainer.finetune.model import open_tokenizer

    started = perf_counter()
    task = read_task(options.task, options.set)
    check_probed(task)
    tokenizer = open_tokenizer(options.folder, task.kind)
    data = read_task_data(task, options.data)
    kind = kind_of(task, data.labels, tokenizer)
    model = open_encoder(options.folder, options.random_weights)

    classifiers = fitted(model, kind, kind.features(data.train))
    scores = scored(model, kind, classifiers, data.dev)
    for layer, score in enumerate(scores):
        logger.info("layer %d: %s %.4f", layer, task.metrics[0], score)

    content = {
        "task": task.name,
        "metric": task.metrics[0],
        "encoder": fingerprint_of(options.folder),
        "random_weights": options.random_weights,
        "layers": scores,
        "seconds": perf_counter() - started,
    }
    storage.publish(str(Path(options.output) / RESULTS_FILE), (json.dumps(content, indent=1) + "\n").encode())


def open_encoder(folder: str, random_weights: bool) -> Any:
    """Return the encoder without a head, in evaluation mode. Raises DataError for damaged and for missing weights."""
    import torch
    from transformers import AutoModel

    from trainer.finetune.model import quiet_transformers, read_config

    config = read_config(folder)
    torch.manual_seed(key("probe", "weights") >> 1)
    if random_weights:
        model: Any = AutoModel.from_config(config)
    else:
        with quiet_transformers():
            model = with_its_weights(folder)
    return model.float().eval().to(device_of_job())


def with_its_weights(folder: str) -> Any:
    """Return the encoder with the weights of a folder. Raises DataError if they are damaged or some are missing."""
    import torch
    from transformers import AutoModel

    try:
        model, told = AutoModel.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises many types here: of missing, damaged and misfit files
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"The weights in {folder} cannot be read: {reason}. Export or download them again.") from error

    # transformers draws what is missing at random. No vector of a layer depends on the pooler.
    missing = sorted(name for name in told["missing_keys"] if "pooler" not in name)
    if missing:
        raise DataError(
            f"{folder} lacks {len(missing)} weights of its encoder, such as {missing[0]}. Export or download it again."
        )
    return model


@dataclass(frozen=True)
class Sample:
    """Vectors (L, N, H) and their classes (N)."""

    vectors_LNH: NDArray[np.float32]
    classes_N: NDArray[np.int64]


def fitted(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> list[Classifier]:
    """Return a classifier for each layer."""
    sample = sample_of(model, kind, chosen(features))
    return [fit(vectors_NH, sample.classes_N, kind.outputs) for vectors_NH in sample.vectors_LNH]


def chosen(features: Sequence[Feature]) -> list[Feature]:
    """Return features with at most MAX_TRAINING_VECTORS vectors together: random ones, always the same."""
    random = np.random.Generator(np.random.PCG64(key("probe", "examples")))
    kept = []
    vectors = 0
    for number in random.permutation(len(features)).tolist():
        vectors += len(classes_of(features[number]))
        if vectors > MAX_TRAINING_VECTORS and kept:
            break
        kept.append(number)
    return [features[number] for number in sorted(kept)]


def classes_of(feature: Feature) -> list[int]:
    """Return the class of each vector of a feature."""
    return list(feature.target) if isinstance(feature.target, list) else [feature.target]


def sample_of(model: Any, kind: Kind[Any, Any], features: list[Feature]) -> Sample:
    """Return the vectors of some features with their classes."""
    from trainer.suite.probe.vectors import layer_vectors

    vectors, classes = [], []
    for numbers, vectors_LNH in layer_vectors(model, kind, features):
        vectors.append(vectors_LNH)
        classes += [one for number in numbers for one in classes_of(features[number])]
    return Sample(np.concatenate(vectors, axis=1), np.array(classes, dtype=np.int64))


def scored(model: Any, kind: Kind[Any, Any], classifiers: Sequence[Classifier], dev: Sequence[Any]) -> list[float]:
    """Return the task's first metric on the dev set for each layer. Its vectors are in memory for one batch alone."""
    from trainer.finetune.scores import score
    from trainer.suite.probe.vectors import layer_vectors

    features = kind.features(dev)
    # What a head would give: of each feature the logits (C,), or (W, C) for its words. 1 stands for the chosen class.
    outputs: list[dict[int, NDArray[np.float32]]] = [{} for _ in classifiers]
    one_hot = np.eye(kind.outputs, dtype=np.float32)
    for numbers, vectors_LNH in layer_vectors(model, kind, features):
        counts = [vectors_of(features[number]) for number in numbers]
        for layer, classifier in enumerate(classifiers):
            found = one_hot[classifier.predict(vectors_LNH[layer])]
            parts = np.split(found, np.cumsum(counts)[:-1])
            for number, part in zip(numbers, parts, strict=True):
                outputs[layer][number] = part if features[number].part is not None else part[0]

    scores = []
    for of_layer in outputs:
        predictions = kind.predictions(dev, features, [of_layer[number] for number in range(len(features))])
        scores.append(score(kind, dev, predictions)[kind.task.metrics[0]])
    return scores


def vectors_of(feature: Feature) -> int:
    """Return how many vectors a feature has: one for each of its words, or one."""
    return len(feature.part.words) if feature.part is not None else 1
