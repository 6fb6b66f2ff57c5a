"""Reads a steps file, or builds the steps of `clozeline finetune --continue_pretraining RECIPE`."""

from __future__ import annotations

import tomllib
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Any

from schemas.errors import StorageError, UsageError
from trainer.config.load import read_recipe, recipe_names
from trainer.config.parse import Origin, apply_overrides, parse_section
from trainer.finetune.encoder_folder import check_encoder_files
from trainer.finetune.files.sets import Naming, check_task_files
from trainer.finetune.shipped import shipped_task_names
from trainer.finetune.steps.schema import (
    ORDER,
    DomainSection,
    FinetuneSection,
    GeneralSection,
    Steps,
    TaskStepSection,
)
from trainer.finetune.task_file import TaskNames, data_folder, is_shipped, read_task

PATHS = ("folder", "corpus", "pairs", "data")
"""Keys of a step that hold paths. `recipe` and `task` do too, unless they name one that ships with Clozeline."""


def read_steps(path: str, folder: str | None) -> Steps:
    """Return the steps of a file, with paths relative to the working directory.

    folder: FOLDER of the command line, None if it was not given.
    Raises UsageError that names the file and each wrong key, and StorageError if the file cannot be read.
    """
    content = _toml_of(path)
    check_order(list(content), path)
    steps = parse_section(Steps, content, Origin(f"--steps {path}"))
    check_sources(steps, folder, path)

    steps = _from_here(steps, Path(path).parent)
    check_files(steps, path)
    if folder is not None:
        return steps.model_copy(update={"general": GeneralSection(folder=folder)})
    return steps


def continued_steps(folder: str, recipe: str, changes: list[str], finetune: FinetuneSection) -> Steps:
    """Return the steps of --continue_pretraining: "domain", if the recipe has its own data.pairs, and "task".

    changes: of the recipe, as --set_pretraining has them. They apply to both.
    """
    content = content_of_recipe(recipe, "--continue_pretraining")
    apply_overrides(content, changes, name="--set_pretraining")
    data = content.get("data", {})
    pairs = data.get("pairs") if isinstance(data, dict) else None
    return Steps(
        general=GeneralSection(folder=folder),
        domain=DomainSection(recipe=recipe, set=changes, pairs=pairs) if pairs else None,
        task=TaskStepSection(recipe=recipe, set=changes),
        finetune=finetune,
    )


def content_of_recipe(recipe: str, name: str = "the recipe") -> dict[str, Any]:
    """Return the content of a recipe file or a shipped recipe. Raises UsageError and StorageError.

    name: the flag or the key that names the recipe, for messages.
    """
    try:
        return tomllib.loads(read_recipe(recipe, name))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} {recipe} is not TOML: {error}.") from error


def check_order(names: list[str], path: str) -> None:
    """Raise UsageError if the tables of a file are not in the order in which the steps run, which would mislead.

    The schema reports unknown names later.
    """
    places = [ORDER.index(name) for name in names if name in ORDER]
    for before, after in pairwise(places):
        if after < before:
            raise UsageError(
                f"--steps {path}: [{ORDER[after]}] stands after [{ORDER[before]}], but is done before it. Steps are "
                f"{', '.join(ORDER)}, in this order."
            )


def check_sources(steps: Steps, folder: str | None, path: str) -> None:
    """Raise UsageError unless the first encoder and the domain's text are each given exactly once."""
    general = steps.general
    if general is not None and folder is not None:
        raise UsageError(f"--steps {path} has [general], and FOLDER {folder} is given too. Leave one of them out.")
    if general is None and folder is None:
        raise UsageError(
            f"--steps {path} has no [general], which names the encoder to begin with. Add it, or give FOLDER: "
            "`clozeline finetune FOLDER --steps ...`."
        )

    if general is not None and (general.folder is None) == (general.recipe is None):
        raise UsageError(f"--steps {path}: [general] needs one of folder and recipe.")
    if general is not None and general.set and general.recipe is None:
        raise UsageError(f"--steps {path}: general.set changes a recipe, and [general] has none.")

    domain = steps.domain
    if domain is not None and (domain.corpus is None) == (domain.pairs is None):
        raise UsageError(f"--steps {path}: [domain] needs one of corpus (text files) and pairs (folders of pairs).")
    has_flags = domain is not None and bool(domain.shard.model_fields_set or domain.make_pairs.model_fields_set)
    if domain is not None and domain.pairs is not None and has_flags:
        raise UsageError(f"--steps {path}: [domain.shard] and [domain.make_pairs] are for a corpus, not for pairs.")


def check_files(steps: Steps, path: str) -> None:
    """Read the recipes and the task, and look for the encoder and the corpus, before anything else is done.

    Raises UsageError that names the key of the steps file, and StorageError if a file cannot be read.
    """
    for name in ("general", "domain", "task"):
        section = getattr(steps, name)
        if section is None or section.recipe is None:
            continue
        content = content_of_recipe(section.recipe, f"--steps {path}: {name}.recipe")
        apply_overrides(content, section.set, name=f"--steps {path}: {name}.set")

    finetune = steps.finetune
    key = f"--steps {path}: finetune"
    names = TaskNames(task=f"{key}.task", set=f"{key}.set", data="finetune.data")
    task = read_task(finetune.task, finetune.set, names)
    data = data_folder(finetune.task, finetune.data, names)
    origin = Origin(finetune.task, finetune.set, names.set)
    check_task_files(task, data, Naming(origin, is_shipped(finetune.task), f"finetune.data of {path}"))

    if steps.general is not None and steps.general.folder is not None:
        check_encoder_files(steps.general.folder)
    if steps.domain is not None and steps.domain.corpus is not None:
        corpus = steps.domain.corpus
        for patterns in corpus if isinstance(corpus, list) else [corpus]:
            check_corpus(patterns, f"--steps {path}: domain.corpus")


def check_corpus(patterns: str, name: str) -> None:
    """Raise UsageError if one of the comma-separated patterns of local files matches no file.

    name: the key that has the patterns. `shard` checks the other patterns: URLs, and those with ** or {}, which it
    reads in its own way.
    """
    for pattern in patterns.split(","):
        if any(special in pattern for special in ("://", "**", "{")):
            continue
        found = [pattern, *glob(pattern, include_hidden=True)]
        if not any(Path(file).is_file() for file in found):
            raise UsageError(
                f"{name} {pattern} matches no file. Give text files, or patterns of them, relative to the folder of "
                "the steps file."
            )


def _toml_of(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--steps {path} is not TOML: {error}.") from error
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"--steps {path} does not exist. Give a TOML file; docs/adapt.md has one.") from None
    except IsADirectoryError:
        raise UsageError(f"--steps {path} is a folder. Give the TOML file inside it.") from None
    except OSError as error:
        raise StorageError(f"--steps {path} cannot be read: {error.strerror}. Check its permissions.") from error


# Paths


def _from_here(steps: Steps, folder: Path) -> Steps:
    """Return the steps with paths relative to the working directory instead of `folder`."""
    changed: dict[str, Any] = {}
    for name in ORDER:
        section = getattr(steps, name)
        if section is None:
            continue
        moved = {key: _moved(value, folder) for key, value in _paths_of(section, folder).items()}
        changed[name] = section.model_copy(update=moved)
    return steps.model_copy(update=changed)


def _paths_of(section: Any, folder: Path) -> dict[str, Any]:
    """Return the keys of a step that hold paths and are set, with their values."""
    paths = {name: getattr(section, name, None) for name in PATHS}

    # These keys also take names of shipped recipes and tasks. A file with the same name takes precedence.
    for key, shipped in (("recipe", recipe_names()), ("task", shipped_task_names())):
        value = getattr(section, key, None)
        if value not in shipped or (folder / value).is_file():
            paths[key] = value
    return {name: value for name, value in paths.items() if value is not None}


def _moved(value: Any, folder: Path) -> Any:
    """Return a path, a list of paths, or comma-separated patterns relative to the working directory. URLs stay."""
    if isinstance(value, list):
        return [_moved(path, folder) for path in value]
    parts = [path if "://" in path else str(folder / path) for path in value.split(",")]
    return ",".join(parts)
