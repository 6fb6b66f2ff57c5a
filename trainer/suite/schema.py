"""The schema of a suite file: its tasks, which of them start from another task's encoder, and what is averaged.

suite_file.py reads it. Each task has its own file (trainer/finetune/task.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from trainer.config.sections import Place, Section

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
"""The pattern of valid names, which are also the names of folders."""

RESERVED_NAMES = ("probe", "export")
RESERVED_ENDING = "-encoder"
"""Names that the suite's own jobs use: LABEL/probe, step-N/export and LABEL/TASK-encoder."""

Variant = Literal["word_l2r", "token"]


class SuiteTask(Section):
    """A task that encoders are fine-tuned on."""

    name: str = Field(pattern=f"^{NAME}$", description="The name of the task in tables, and of its folder.")
    file: Place = Field(min_length=1, description="The task file, relative to the suite file.")
    metric: str | None = Field(
        default=None, description="The metric to report, one of the task's own. If unset, the first one."
    )
    sets: tuple[str, ...] = Field(
        default=("dev",),
        min_length=1,
        description='The labeled sets whose scores are averaged: "dev", "test", and names of the task\'s [data.extra].',
    )
    starts_from: str | None = Field(
        default=None,
        description="An earlier task of the suite, whose best fine-tuned encoder this task starts from, with a new "
        "head. If unset, this task starts from the folder that is measured.",
    )
    in_average: bool = Field(default=True, description="Whether the score counts in the average over tasks.")


class MinimalPairs(Section):
    """Pairs of an acceptable and an unacceptable sentence, scored without fine-tuning."""

    name: str = Field(pattern=f"^{NAME}$", description="The name in tables, and of its folder.")
    files: Place = Field(
        min_length=1, description="The files, relative to --data. The last part of the path may have wildcards."
    )
    source: str | None = Field(default=None, description="Where the files can be had, for messages that miss them.")
    variant: Variant = Field(
        default="word_l2r",
        description='What is masked to score a token. "word_l2r": it and what follows in its word. "token": only it.',
    )
    optional: bool = Field(default=False, description="Whether the suite runs without these files.")
    in_average: bool = Field(default=False, description="Whether the score counts in the average over tasks.")


class Suite(Section):
    """A whole suite."""

    name: str = Field(min_length=1, description="The name of the suite in reports.")
    tasks: tuple[SuiteTask, ...] = Field(default=(), description="The tasks, in the order of the table.")
    minimal_pairs: tuple[MinimalPairs, ...] = Field(
        default=(), description="Minimal pairs, which follow the tasks in the table."
    )

    @field_validator("tasks")
    @classmethod
    def _tasks_start_from_earlier_ones(cls, tasks: tuple[SuiteTask, ...]) -> tuple[SuiteTask, ...]:
        earlier: set[str] = set()
        for task in tasks:
            if task.starts_from is not None and task.starts_from not in earlier:
                raise ValueError(
                    f"{task.name} starts from {task.starts_from}, which is not an earlier task of this suite; earlier "
                    f"tasks: {', '.join(sorted(earlier)) or 'none'}"
                )
            earlier.add(task.name)
        return tasks

    @model_validator(mode="after")
    def _names_are_unique(self) -> Suite:
        if not self.names:
            raise ValueError("the suite has neither tasks nor minimal pairs")
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise ValueError(f"two parts of the suite have the name {twice[0]}")
        return self

    @model_validator(mode="after")
    def _names_are_free(self) -> Suite:
        for name in self.names:
            if name in RESERVED_NAMES or name.endswith(RESERVED_ENDING):
                raise ValueError(
                    f"a part of the suite has the name {name}, which is reserved for jobs of the suite itself, as are "
                    f"{', '.join(RESERVED_NAMES)} and all names that end in {RESERVED_ENDING}"
                )
        return self

    @property
    def names(self) -> list[str]:
        """The names of all parts, in the order of the table."""
        return [part.name for part in (*self.tasks, *self.minimal_pairs)]

    def only(self, names: Sequence[str]) -> Suite:
        """Return the suite with only the parts of these names."""
        return self.model_copy(
            update={
                "tasks": tuple(task for task in self.tasks if task.name in names),
                "minimal_pairs": tuple(pairs for pairs in self.minimal_pairs if pairs.name in names),
            }
        )
