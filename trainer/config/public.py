"""What of a recipe others may read: no secrets, and in a model card no places of files either.

The tables of [deepspeed] that name services hold their passwords ([deepspeed.comet] api_key), and DeepSpeed adds such
tables from version to version. So those that are known to hold nothing but settings of the computation are shown, and
all others are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trainer.config.changes import RecipeChange
from trainer.config.validate import DEEPSPEED_TABLES

PLACES = ("pairs", "vocab", "cache", "output", "local", "init_from")
"""Keys of a recipe that hold paths of the machine it ran on, in any table: nobody else's business."""
SERVICES = ("autotuning", "comet", "csv_monitor", "monitor_config", "nebula", "tensorboard", "wandb")
"""Tables of [deepspeed] that name services and accounts."""
VALUES = (
    "communication_data_type",
    "dump_state",
    "gradient_predivide_factor",
    "memory_breakdown",
    "prescale_gradients",
    "seq_parallel_communication_data_type",
    "sparse_gradients",
    "steps_per_print",
    "wall_clock_breakdown",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
)
"""Keys of [deepspeed] itself that hold one setting."""
SHOWN = ({*DEEPSPEED_TABLES} - {*SERVICES}) | {*VALUES}
"""What of [deepspeed] may be shown."""


def without_secrets(content: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's tables without what [deepspeed] may keep secret."""
    if not isinstance(content.get("deepspeed"), dict):
        return {name: value for name, value in content.items() if name != "deepspeed"}
    kept = {name: value for name, value in content["deepspeed"].items() if name in SHOWN}
    return content | {"deepspeed": kept}


def without_secret_keys(values: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe's values by their full names without what may be secret."""
    return {key: value for key, value in values.items() if not is_secret(key)}


def without_paths(content: dict[str, Any]) -> dict[str, Any]:
    """Leave out keys that hold paths, and whatever looks like a path, as in a table that passes to DeepSpeed."""
    kept: dict[str, Any] = {}
    for key, value in content.items():
        if key in PLACES or _is_place(value):
            continue
        if isinstance(value, dict):
            kept[key] = without_paths(value)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            kept[key] = [without_paths(item) for item in value]
        else:
            kept[key] = value
    return kept


def changes_without_secrets(changes: Iterable[RecipeChange]) -> list[RecipeChange]:
    """Return the changes of keys whose values may be shown."""
    return [change for change in changes if not is_secret(change.key)]


def changes_without_paths(changes: Iterable[RecipeChange]) -> list[RecipeChange]:
    """Return the changes whose key and values name no path."""
    return [
        change
        for change in changes
        if change.key.rsplit(".", 1)[-1] not in PLACES and not _is_place(change.before) and not _is_place(change.now)
    ]


def is_secret(key: str) -> bool:
    """Return whether the value of a key may be a secret. Example: `is_secret("deepspeed.comet.api_key")`."""
    table, _, rest = key.partition(".")
    return table == "deepspeed" and rest.split(".")[0] not in SHOWN


def _is_place(value: Any) -> bool:
    """Whether a value of a recipe is a path or a URL, or a list with one. No other value has a slash in it."""
    values = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(item, str) and ("/" in item or "\\" in item or item.startswith("~")) for item in values)
