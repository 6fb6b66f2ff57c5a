"""Reads a steps file, or builds the steps of `clozeline finetune --continue_pretraining RECIPE`."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

from schemas.errors import StorageError, UsageError
from trainer.config.load import read_recipe
from trainer.config.overrides import apply_override
from trainer.config.parse import parse_section
from trainer.config.shipped import recipe_names
from trainer.finetune.shipped import shipped_task_names
from trainer.finetune.steps.schema import (
    ORDER,
    DomainSection,
    FinetuneSection,
    GeneralSection,
    Steps,
    TaskStepSection,
)

PATHS = ("folder", "corpus", "pairs", "data")
"""Keys of a step that hold paths. `recipe` and `task` do too, unless they name one that ships with Clozeline."""


def read_steps(path: str, folder: str | None) -> Steps:
    """Return the steps of a file, with paths relative to the working directory.

    folder: FOLDER of the command line, None if it was not given.
    Raises UsageError that names the file and each wrong key, and StorageError if the file cannot be read.
    """
    content = _toml_of(path)
    check_order(list(content), path)
    steps = parse_section(Steps, content, f"--steps {path}")
    check_sources(steps, folder, path)
    if folder is not None:
        return _from_here(steps, Path(path).parent).model_copy(update={"general": GeneralSection(folder=folder)})
    return _from_here(steps, Path(path).parent)


def continued_steps(folder: str, recipe: str, changes: list[str], finetune: FinetuneSection) -> Steps:
    """Return the steps of --continue_pretraining: "domain", if the recipe has its own data.pairs, and "task".

    changes: of the recipe, as --set_pretraining has them. They apply to both.
    """
    content = content_of_recipe(recipe)
    for change in changes:
        apply_override(content, change)
    data = content.get("data", {})
    pairs = data.get("pairs") if isinstance(data, dict) else None
    return Steps(
        general=GeneralSection(folder=folder),
        domain=DomainSection(recipe=recipe, set=changes, pairs=pairs) if pairs else None,
        task=TaskStepSection(recipe=recipe, set=changes),
        finetune=finetune,
    )


def content_of_recipe(recipe: str) -> dict[str, Any]:
    """Return the content of a recipe file or a shipped recipe. Raises UsageError and StorageError."""
    try:
        return tomllib.loads(read_recipe(recipe))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The recipe {recipe} is not TOML: {error}.") from error


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
