"""Checks the commands of a plan before the first of them begins: the last one's turn may come hours later.

Each command line is read by the parser of its own program. What only the results of earlier steps can show, such as a
vocabulary that cannot hold the alphabet, is left to the command.
"""

from __future__ import annotations

from clozeline.start.plan_file import Step
from pipeline import cli as pipeline_cli
from pipeline.flags import given_flags
from pipeline.options import PairsJob, VocabJob
from schemas.errors import ClozelineError
from trainer import cli as trainer_cli
from trainer.config.load import load_recipe
from trainer.export import cli as export_cli


def check_steps(steps: list[Step], place: str) -> None:
    """Raise the error that a command would end with, for the first with a wrong flag, key or value.

    place: the plan's file, which the error names with the section of the step.
    """
    for step in steps:
        try:
            _check(step)
        except ClozelineError as error:
            raise type(error)(f"{place}, [{step.section}]: {error}") from error


def _check(step: Step) -> None:
    if step.is_job:
        _check_job(list(step.words[1:]))
    elif step.name == "train":
        options = trainer_cli.parser("clozeline train").parse_args(step.words[step.words.index("--config") :])
        load_recipe(options.config, options.set)
    else:
        export_cli.parser("clozeline export").parse_args(step.words[2:])


def _check_job(words: list[str]) -> None:
    parsed, others = pipeline_cli.parser("clozeline").parse_known_args(words)
    if others:
        from pipeline.beam.engines import check_flags  # loads Beam, which takes a second

        check_flags(others, parsed.known_flags)
    for name, options in (("vocab", VocabJob), ("pairs", PairsJob)):
        if words[0] == name:
            options.from_flags(given_flags(options, parsed))
