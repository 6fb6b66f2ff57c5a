"""Runs the commands of a plan one after another, and remembers in OUTPUT/steps.json what was made by which.

A step has a key: a hash of its command, of the rows that it needs, and of the input files or the recipe's text. Where
the output is and which GPUs train is no part of it, so a folder may be moved. A step whose key is that of its last
start is left as it is if it ended well, and otherwise its command runs again and continues. With another key its result
is replaced: `--overwrite` replaces that of the pipeline, and a run's folder is renamed, so that no training is lost.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from glob import escape as glob_escape
from glob import glob
from itertools import count
from typing import Any

from clozeline.start.plan_file import NAME as PLAN_NAME
from clozeline.start.plan_file import Step, Values, steps_of
from pipeline import cli as pipeline_cli
from pipeline.flags import flags_of, given_flags
from pipeline.options import PairsJob, ShardJob, VocabJob
from pipeline.readers.corpora import read_corpora
from pipeline.readers.listing import list_inputs, without
from schemas import storage
from schemas.errors import INTERRUPTED, ClozelineError, DataError, PreemptedError, UsageError
from schemas.manifest import NAME as MANIFEST
from schemas.manifest import open_manifest
from trainer import cli as trainer_cli
from trainer.checkpoint.text_facts import keep_text_facts
from trainer.config.load import load_recipe
from trainer.config.parse import keys_called
from trainer.config.schema import Recipe
from trainer.data.fit import LABELED
from trainer.distributed.stop import listened
from trainer.export import cli as export_cli
from trainer.models.families import FAMILIES, pair_objective

NAME = "steps.json"

STOPPED = (PreemptedError.exit_code, INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Exit codes of a command that was asked to stop."""

SECONDS_OF_A_SIGNAL = 0.3
"""Within which a signal to a group of processes has reached all of them."""

FILES = {
    "shard": (("input", "inputs", "exclude", "filters", "decontaminate"), "the input: a file is new, gone or edited"),
    "train": (("config",), "the file of the recipe"),
}
"""For each step that reads the user's files: the keys that name them, and what a change of files alone is called."""

Facts = dict[str, Any]
"""What a step depends on other than its command, by the names of steps."""


@dataclass
class Begun:
    """The last start of a step.

    replaces: whether it was to replace an earlier result. options: its section of the plan, by which `inspect` knows
    that it has changed since. files: a hash of its `Facts`.
    """

    key: str
    is_done: bool = False
    replaces: bool = False
    options: dict[str, Any] | None = None
    files: str = ""


@dataclass
class Record:
    """OUTPUT/steps.json."""

    output: str
    steps: dict[str, Begun] = field(default_factory=dict)

    @classmethod
    def read(cls, output: str) -> Record:
        path = os.path.join(output, NAME)
        if not os.path.exists(path):
            return cls(output)
        try:
            content = json.loads(storage.read(path))
            return cls(output, {name: Begun(**entry) for name, entry in content.items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise DataError(
                f"{storage.printable(path)} is damaged ({error}). Write {{}} into it: all steps are run again, "
                "and the trained run is kept as run_before_1."
            ) from error

    def write(self) -> None:
        text = json.dumps({name: vars(entry) for name, entry in self.steps.items()}, indent=2) + "\n"
        storage.publish(os.path.join(self.output, NAME), text.encode())


def commands_of(plan: Values) -> dict[str, list[str]]:
    """Return the part of each step's command that decides about its result."""
    commands = {step.name: list(step.words) for step in steps_of(plan, output="")}
    training = commands["train"]
    return commands | {"train": training[training.index("--config") :]}


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _result_of(step: Step, key: str, output: str) -> str:
    """Return what identifies the result of a step: its rows, or the step's key."""
    if not step.is_job:
        return key
    folders = [os.path.join(output, step.folder + suffix) for suffix in ("", "_heldout")]
    roots = [open_manifest(folder) for folder in folders if os.path.exists(os.path.join(folder, MANIFEST))]
    return _hash([root.fingerprint for root in roots])


def check_steps(steps: list[Step], plan: Values, place: str) -> Facts:
    """Return the plan's facts. Raise the error that a command would end with, for the first with a wrong flag or value.

    place: the plan's file, which the error names with the section of the step. The parser of each command reads its
    words. What only the results of earlier steps can show, such as a vocabulary that cannot hold the alphabet, is left
    to the command.
    """
    for step in steps:
        try:
            with redirect_stderr(io.StringIO()):  # the command itself will say what it has to say
                _check(step)
        except ClozelineError as error:
            of_file = str(error).replace("Unknown flag --", "Unknown key ").replace("Did you mean --", "Did you mean ")
            raise type(error)(f"{place}, [{step.section}]: {of_file}{_section_hint(of_file)}") from error
    for step in steps:
        if step.name == "train":
            _check_model(_recipe_of(step), plan, place)
    if not {"input", "inputs"} & plan["shard"].keys():
        raise UsageError(f"{place}, [shard]: there is no input = [...], the files and folders to read, nor inputs.")
    try:
        return facts_of(plan)
    except UsageError as error:
        raise UsageError(f"{place}, [shard]: {error}") from error


def _section_hint(error: str) -> str:
    """Return where a key belongs that another step has."""
    unknown = re.match(r"Unknown key (\w+)\.$", error)
    jobs = {"shard": ShardJob, "vocab": VocabJob, "pairs": PairsJob}
    owners = [f"[{name}]" for name, job in jobs.items() if unknown and unknown[1] in flags_of(job)]
    return f" Write it under {' or '.join(owners)}." if owners else ""


def _check_model(recipe: Recipe, plan: Values, place: str) -> None:
    """Raise UsageError if the vocabulary, or the length of the rows, is not for the model."""
    config, vocab, entries = plan["train"]["config"], plan["vocab"], recipe.model.vocab_size
    size, rows = (_number(plan[name].get(key)) for name, key in (("vocab", "size"), ("pairs", "max_length")))
    begins_with_folder = recipe.model.init_from is not None or recipe.model.tile_from is not None
    if not begins_with_folder and entries not in (None, size):
        raise UsageError(
            f"{place}, [train]: {config} is for a vocabulary of {entries} entries, and size is {size} "
            'under [vocab]. Write "model.vocab_size" = "none" under [train], which takes the size that the vocabulary '
            f"has, or size = {entries} under [vocab] if the text is large enough for it."
        )
    if recipe.model.family == "roberta" and vocab.get("model") != "bytebpe":
        raise UsageError(f'{place}, [vocab]: roberta, of {config}, needs a vocabulary of model = "bytebpe".')
    longest = recipe.model.max_position_embeddings
    if isinstance(rows, int) and longest is not None and rows > longest:
        raise UsageError(
            f"{place}, [pairs]: max_length {rows} is above the {longest} tokens that the model takes. Lower it, or "
            f"write model.max_position_embeddings = {rows} under [train]."
        )


def _number(value: Any) -> Any:
    """Return a value of the plan, of which a number may be in quotes."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def pairs_warning(steps: list[Step], plan: Values) -> list[str]:
    """Return a warning if the pairs have no labels and the model is made for some, or the other way round."""
    recipe = next(_recipe_of(step) for step in steps if step.name == "train")
    config, wanted = plan["train"]["config"], pair_objective(recipe)
    objective = " ".join(listed(plan["pairs"].get("objective")))
    if wanted and objective not in LABELED:
        return [
            f"Warning: {config} is made for {wanted.upper()}; without it, its pair head learns nothing. Write "
            f'objective = "{wanted}" under [pairs].'
        ]
    if objective in LABELED and not FAMILIES[recipe.model.family].pair_head:
        return [
            f"Warning: {config} has no pair head, so it does not predict the labels of {objective}. Write "
            'objective = "full_sentences" under [pairs].'
        ]
    return []


def _check(step: Step) -> None:
    if step.is_job:
        _check_job(list(step.words[1:]))
    elif step.name == "train":
        _recipe_of(step)
    else:
        export_cli.parser("clozeline export").parse_args(step.words[2:])


def _recipe_of(step: Step) -> Recipe:
    options = trainer_cli.parser("clozeline train").parse_args(step.words[step.words.index("--config") :])
    _check_keys([change.partition("=")[0] for change in options.set])
    return load_recipe(options.config, options.set)


def _check_keys(keys: list[str]) -> None:
    """Raise UsageError for a key that stands under [train] and is neither one of a recipe nor its section."""
    for key in keys:
        if "." in key or key in Recipe.model_fields:
            continue
        hint = ""
        if f"--{key}" in export_cli.parser("clozeline export").known_flags:
            hint = " It is a flag of `export`: write it under [export]."
        elif keys_called(key):
            hint = f" Did you mean {' or '.join(keys_called(key))}?"
        raise UsageError(f"{key} is no key of a recipe, which has the form section.key, as in run.seed.{hint}")


def _check_job(words: list[str]) -> None:
    parsed, others = pipeline_cli.parser("clozeline").parse_known_args(words)
    if others:
        from pipeline.beam.engines import check_flags  # loads Beam, which takes a second

        check_flags(others, parsed.known_flags)
    for name, options in (("vocab", VocabJob), ("pairs", PairsJob)):
        if words[0] == name:
            options.from_flags(given_flags(options, parsed))


def facts_of(plan: Values) -> Facts:
    """Return the files that the corpus has, and hashes of those that the plan names."""
    shard = plan["shard"]
    patterns = listed(shard.get("input"))
    if "inputs" in shard:
        patterns += [pattern for corpus in read_corpora(str(shard["inputs"])) for pattern in corpus.patterns]
    listings = without([list_inputs(*patterns)], listed(shard.get("exclude"))) if patterns else []
    files = [list(file) for listing in listings for file in listing.files]
    named = [*listed(shard.get("inputs")), *listed(shard.get("filters"))]
    named += [path for given in listed(shard.get("decontaminate")) for path in given.split(",")]
    return {"shard": [files, _hashes(named)], "train": _hashes([str(plan["train"]["config"])])}


def listed(value: Any) -> list[str]:
    """Return the values of a flag that may have several."""
    return [str(one) for one in value] if isinstance(value, list) else [] if value is None else [str(value)]


def _hashes(paths: list[str]) -> list[str]:
    return [storage.sha256(storage.read(path)) for path in paths if os.path.isfile(path)]


def run_steps(steps: list[Step], plan: Values, facts: Facts, output: str) -> int:
    """Run what is not done yet. Return 0, or the exit code of the command that did not end well."""
    record, commands = Record.read(output), commands_of(plan)
    keys: dict[str, str] = {}
    results: dict[str, str] = {}
    for number, step in enumerate(steps, start=1):
        title = f"[{number}/{len(steps)}] {step.name}"
        begun = record.steps.get(step.name)
        # Pairs and the model's card tell what became of all files. Made again after `shard` they take little time.
        needed = keys if step.folder in ("pairs", "held_out", "hf") else results
        key = _hash([commands[step.name], [needed[name] for name in step.needs], facts.get(step.name)])
        keys[step.name] = key
        is_there = os.path.exists(os.path.join(output, step.folder, step.is_finished_by))
        if begun is not None and begun.key == key and begun.is_done and is_there:
            results[step.name] = _result_of(step, key, output)
            _keep_result(record, step, plan)
            print(f"{title}: done before", flush=True)
            continue

        words = list(step.words)
        if begun is None or begun.key != key:
            begun = _begun_anew(step, key, title, output)
        begun.is_done, begun.options, begun.files = False, plan[step.section], _hash(facts.get(step.name))
        if begun.replaces and step.name != "train":
            words.append("--overwrite")

        record.steps[step.name] = begun
        record.write()
        print(f"\n{title}\n$ {shlex.join(words)}", flush=True)
        code, stopped = _run(words)
        if code:
            if code not in STOPPED:
                _tell_failure(title, step, output)
            return code
        begun.is_done, begun.replaces = True, False
        results[step.name] = _result_of(step, key, output)
        record.write()
        if stopped and step is not steps[-1]:
            return stopped
    return 0


def _keep_result(record: Record, step: Step, plan: Values) -> None:
    """Record what has changed about a step that is done, other than its result."""
    if step.name == "train":  # the same rows may now be of a corpus with a name or a license
        pairs = open_manifest(os.path.join(record.output, "pairs"))
        keep_text_facts(os.path.join(record.output, step.folder), [pairs])
    begun = record.steps[step.name]
    if begun.options != plan[step.section]:  # by how many processes, for one
        begun.options = plan[step.section]
        record.write()


def _begun_anew(step: Step, key: str, title: str, output: str) -> Begun:
    """Return the first start of a step with this key. An earlier run is renamed."""
    folder = os.path.join(output, step.folder)
    begun = Begun(key, replaces=os.path.exists(folder))
    if step.name == "train" and glob(os.path.join(glob_escape(folder), "checkpoints", "step-*")):
        names = (f"{folder}_before_{number}" for number in count(1))
        kept = next(name for name in names if not os.path.exists(name))
        os.rename(folder, kept)
        print(f"{title}: the earlier run is kept as {kept}")
    return begun


def is_trained(plan: Values, output: str) -> bool:
    """Return whether the training of a plan has ended well."""
    begun = Record.read(output).steps.get("train")
    return begun is not None and begun.is_done and begun.options == plan["train"]


def changed_lines(steps: list[Step], plan: Values, facts: Facts, output: str) -> Iterator[str]:
    """Yield each value of the plan, and what files, that are others than when their step was last begun."""
    record = Record.read(output)
    sections = {step.section: begun.options for step in steps if (begun := record.steps.get(step.name))}
    for section, before in sections.items():
        now = plan[section]
        if before is None:
            continue
        for key in {**before, **now}:
            if before.get(key) != now.get(key):
                yield f"Changed: [{section}] {key}: {before.get(key, 'not set')} -> {now.get(key, 'not set')}"
    for name, (keys, what) in FILES.items():
        begun = record.steps.get(name)
        if begun is None or begun.files == _hash(facts.get(name)):
            continue
        if all((begun.options or {}).get(key) == plan[name].get(key) for key in keys):
            yield f"Changed: {what}. What depends on it runs again; a trained run is kept."


def _tell_failure(title: str, step: Step, output: str) -> None:
    place = storage.printable(os.path.join(output, PLAN_NAME))
    print(
        f"{title} failed; see the error above. Its flags are under [{step.section}] in {place}. Fix them or the input "
        "files, and run `clozeline start` again: it continues from here.",
        file=sys.stderr,
    )


def _run(words: list[str]) -> tuple[int, int]:
    """Run a command of ours. Return its exit code, and that for a signal to stop, which may have come at its end, or 0.

    Signals to this process alone are handed on; those of Ctrl-C reach both.
    """
    installed = os.path.join(os.path.dirname(sys.executable), "deepspeed")
    launcher = installed if os.path.exists(installed) else "deepspeed"
    program = {"clozeline": [sys.executable, "-m", "clozeline"], "deepspeed": [launcher]}[words[0]]
    # Ctrl-C ends this one, and so shows that the command got the signal, too. At the latest it ends with its stdin.
    idle = [sys.executable, "-ISc", "import sys; sys.stdin.read()"]
    witness = subprocess.Popen(idle, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    process = subprocess.Popen([*program, *words[1:]])

    asked = [0]

    def hand_on(number: int, frame: object) -> None:
        asked.append(128 + number)
        if number == signal.SIGTERM or not _ends(witness):
            process.send_signal(number)

    before = [(number, signal.signal(number, hand_on)) for number in listened()]
    try:
        code = process.wait()
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        witness.communicate()
    return code if code >= 0 else 128 - code, asked[-1]


def _ends(process: subprocess.Popen[bytes]) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(SECONDS_OF_A_SIGNAL)
    return process.returncode is not None
