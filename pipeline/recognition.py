"""What `inspect` says of what is no finished result of the pipeline: a folder of another kind, a file, or a corpus.

For each: what is in it, and what to do next.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

from pipeline.readers.ranges import ByteRange, read_ranges
from schemas import folder_kinds as kinds
from schemas import storage
from schemas.errors import DataError
from schemas.folder_kinds import Folder, is_file, kind_of, table, what_is
from schemas.terminal import LABEL_WIDTH, labeled, next_is
from schemas.urls import READ_ONLY

TAIL = 1 << 18  # bytes at the end of the metrics
MAX_HEADER = 16 << 20  # bytes of the header of a file of weights
MAX_LISTED = 20  # folders in a folder that are looked at
CONTINUES = "the command that began it continues it; if that ended with an error, remove the cause first"
RESTORE = "restore these files, or begin a new run with another run.output"


def _of_start(folder: Folder) -> Iterator[str]:
    plan, steps = folder.read(kinds.PLAN), folder.read("steps.json")
    source = table(plan.get("start")).get("folder", "FOLDER")
    yield labeled("text", source)
    names = list(steps)
    done = [name for name in names if table(steps[name]).get("is_done")]
    # A step that is to be done again leaves the results of an earlier plan behind it.
    before = names[: next((at for at, name in enumerate(names) if name not in done), len(names))]
    outdated = [name for name in done if name not in before or _is_outdated(name, table(steps[name]), plan)]
    yield labeled("done", ", ".join(name for name in done if name not in outdated) or "nothing yet")
    if len(done) < len(names):
        yield labeled("unfinished", ", ".join(name for name in names if name not in done))
    if outdated:
        yield labeled("outdated", f"{', '.join(outdated)}, and what is made of it, of before a change of {kinds.PLAN}")
    yield from results_inside(folder)
    again = f"clozeline start {shlex.quote(str(source))} --output {folder.quoted}"
    has_model = kinds.CONFIG in Folder(folder.at("hf")).names and not outdated
    uses = _uses_of_model(shlex.quote(folder.at("hf"))) if has_model else ()
    yield from next_is(f"{again}    continues, or repeats what a change of {kinds.PLAN} or of files concerns", *uses)


def _is_outdated(name: str, step: dict[str, Any], plan: Any) -> bool:
    """Return whether the section of a step has changed since it ran. Input files are not looked at."""
    section = "pairs" if name == "held-out pairs" else name
    return bool(plan) and step.get("options") is not None and step["options"] != table(plan.get(section))


def _of_checkpoint(folder: Folder) -> Iterator[str]:
    state = folder.read(kinds.STATE)
    yield labeled("step", f"{_number(state.get('step'))} after {_number(state.get('tokens'))} tokens")
    yield labeled("files", f"{len(folder.names)}, {sum(folder.sizes.values()):,} bytes")
    damage = _damage(folder)
    if damage:
        yield from (labeled("damaged", damage), *next_is("restore it, or use another checkpoint of the run"))
        return
    path = os.path.abspath(folder.path) if storage.is_local(folder.path) else folder.path
    run = path.rpartition("/checkpoints/")[0] or path
    yield from next_is(
        f"clozeline export {shlex.quote(run)} --step {state.get('step', 'N')} --output DIR    checks it, and writes "
        "its model"
    )


def _of_run(folder: Folder) -> Iterator[str]:
    recipe = folder.read(kinds.RECIPE)
    model, data, run = (table(recipe.get(name)) for name in ("model", "data", "run"))
    shape = f"{model.get('num_hidden_layers', '?')} layers of {model.get('hidden_size', '?')}"
    yield labeled("model", f"{model.get('family', '?')}, {shape}")
    yield labeled("pairs", data.get("pairs", "?"))
    lines = _last_lines(folder)
    step = max((int(line["step"]) for line in lines if _is_number(line.get("step"))), default=0)
    whole = run.get("max_steps")
    yield labeled("progress", f"step {step:,}" + (f" of {whole:,}" if isinstance(whole, int) else ""))
    yield from _losses(lines)

    if "report.html" in folder.names:
        yield labeled("report", folder.at("report.html"))
    yield from _checkpoints(folder, is_whole=not isinstance(whole, int) or step >= whole)


def _checkpoints(run: Folder, is_whole: bool) -> Iterator[str]:
    """Yield the number of a run's checkpoints, what is wrong with the newest ones, and what is next."""
    # Without a prefix, with which a store lists files alone.
    names = storage.names(run.at("checkpoints"))
    steps = sorted(name for name in names if name.removeprefix("step-").isdecimal())
    yield labeled("checkpoints", f"{len(steps)}" + (f", the newest {steps[-1]}" if steps else ""))
    sound = list(steps)
    while sound and (damage := _damage(Folder(run.at("checkpoints", sound[-1])))):
        yield labeled("damaged", damage)
        sound.pop()

    if steps and not sound:
        yield from next_is(RESTORE)
    elif not is_whole or sound != steps or not steps:
        yield from next_is(CONTINUES)
    if sound:
        step = "" if sound == steps else f" --step {int(sound[-1].removeprefix('step-'))}"
        yield from next_is(f"clozeline export {run.quoted}{step} --output {shlex.quote(run.path + '_hf')}")


def _damage(checkpoint: Folder) -> str:
    """Return what is wrong with a checkpoint, by the sizes of its files alone; empty if nothing is."""
    files = checkpoint.read(kinds.MANIFEST).get("files")
    if not isinstance(files, list) or not files:
        return f"{checkpoint.at(kinds.MANIFEST)} is missing, or was cut or changed"
    for entry in map(table, files):
        name = str(entry.get("path"))
        if checkpoint.sizes.get(name, -1) != entry.get("bytes"):
            return f"{checkpoint.at(name)} is missing, or was cut or changed"
    return ""


def _losses(lines: list[dict[str, Any]]) -> Iterator[str]:
    losses = _values(lines, "mlm_loss") or _values(lines, "loss")
    if losses:
        yield labeled("loss", f"{losses[-1]:.2f} nats")

    held_out = _values(lines, "eval_mlm_loss_masked") or _values(lines, "eval_mlm_loss", "eval_loss")
    if held_out:
        frequencies = _values(lines, "eval_unigram_loss")
        more = f"; word frequencies alone give {frequencies[-1]:.2f}" if frequencies else ""
        yield labeled("held out", f"{held_out[-1]:.2f} nats{more}")


def _values(lines: list[dict[str, Any]], *keys: str) -> list[Any]:
    return [line[key] for line in lines for key in keys if _is_number(line.get(key))]


def _last_lines(folder: Folder) -> list[dict[str, Any]]:
    if kinds.METRICS not in folder.sizes:
        return []
    url, size = folder.at(kinds.METRICS), folder.sizes[kinds.METRICS]
    (tail,) = read_ranges([ByteRange(url, max(0, size - TAIL), size)])
    lines = []
    for line in tail.split(b"\n"):
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            lines.append(content)
    return lines


def _of_suite(folder: Folder) -> Iterator[str]:
    results = folder.results
    yield labeled("suite", results.get("suite") or "a probe")
    for label, average in table(results.get("averages")).items():
        score = table(table(average).get("spread")).get("mean")
        yield labeled("encoder", f"{label}" + (f": {score:.4f} on average" if _is_number(score) else ""))
    yield labeled("tables", f"{folder.at('table.md')}, {folder.at('report.html')}")
    yield from next_is("the command that made it adds tasks, encoders and seeds")


def _of_finetuning(folder: Folder) -> Iterator[str]:
    results, task = folder.results, folder.read(kinds.TASK)
    name = results.get("task") or task.get("name", "?")
    yield labeled("task", f"{name} ({results.get('kind') or task.get('kind', '?')})")
    if not results:
        seeds = [seed for seed in sorted(folder.names) if seed.startswith("seed-")]
        yield labeled("progress", f"unfinished; begun: {', '.join(seeds) or 'no seed'}")
        yield from next_is(CONTINUES)
        return

    yield labeled("encoder", results.get("encoder", "?"))
    for set_name, scores in table(results.get("summary")).items():
        means = {metric: table(spread).get("mean") for metric, spread in table(scores).items()}
        yield labeled(set_name, "  ".join(f"{name} {mean:.4f}" for name, mean in means.items() if _is_number(mean)))
    yield labeled("report", folder.at("report.html"))
    if "hf" in folder.names:
        yield from next_is(f"transformers' from_pretrained({folder.at('hf')!r}) opens the best seed's model")


def _of_model(folder: Folder) -> Iterator[str]:
    config = folder.read(kinds.CONFIG)
    classes = config.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else "?"
    yield labeled("model", f"{name} ({config.get('model_type', '?')})")
    shape = ("num_hidden_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "vocab_size")
    yield labeled("shape", "  ".join(f"{key}={config[key]}" for key in shape if key in config))
    parameters = sum(_parameters(folder.at(one)) for one in sorted(folder.sizes) if one.endswith(".safetensors"))
    if parameters:
        yield labeled("weights", f"{parameters:,} parameters")
    elif not any(one.endswith((".bin", ".safetensors")) for one in folder.names):
        yield labeled("weights", "none: there is no *.safetensors")
    if kinds.TOKENIZER_FILE not in folder.names and not {"vocab.txt", "vocab.json"} & folder.names:
        yield labeled("tokenizer", f"none: there is no {kinds.TOKENIZER_FILE}")
    yield from next_is(*_uses_of_model(folder.quoted))


def _uses_of_model(path: str) -> tuple[str, str]:
    return (
        f"clozeline finetune {path} --task TASK.toml --output DIR",
        f"clozeline train --config adapt_domain --set model.init_from={path} ...    continues it on other text",
    )


def _parameters(url: str) -> int:
    """Return how many numbers a file of safetensors holds, by its header; 0 if that is damaged."""
    (start,) = read_ranges([ByteRange(url, 0, 8)])
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER:
        return 0
    (header,) = read_ranges([ByteRange(url, 8, 8 + length)])
    try:
        tensors = json.loads(header)
        return sum(math.prod(one["shape"]) for key, one in tensors.items() if key != "__metadata__")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return 0


def _of_unfinished(folder: Folder) -> Iterator[str]:
    yield labeled("holds", f"pieces that the next attempt reuses; there is no {kinds.MANIFEST} yet")
    yield from next_is(f"{CONTINUES}; while it runs, wait for it")


def _of_tokenizer(folder: Folder) -> Iterator[str]:
    yield from tokenizer_lines(folder.at(kinds.TOKENIZER_FILE))
    yield from next_is(f"clozeline pairs --text TEXT --vocab {folder.quoted} --output DIR --objective full_sentences")


LINES: dict[str, Callable[[Folder], Iterator[str]]] = {
    kinds.START: _of_start,
    kinds.CHECKPOINT: _of_checkpoint,
    kinds.RUN: _of_run,
    kinds.SUITE: _of_suite,
    kinds.TUNED: _of_finetuning,
    kinds.MODEL: _of_model,
    kinds.UNFINISHED_JOB: _of_unfinished,
    kinds.TOKENIZER: _of_tokenizer,
    kinds.EMPTY: lambda folder: next_is(f"clozeline start YOUR_TEXTS --output {folder.quoted}"),
}
"""What a folder of each kind holds, and what is next."""


def results_inside(folder: Folder) -> Iterator[str]:
    """Yield a line for each folder inside that is one of ours, of the first MAX_LISTED, and how many more there are."""
    folders = sorted(name for name in folder.names - folder.sizes.keys() if not name.startswith("."))
    found = [(name, what_is(folder.at(name))) for name in folders[:MAX_LISTED]]
    lines = [labeled(name, what) for name, what in found if what not in ("", kinds.EMPTY)]
    yield from lines
    if lines and len(folders) > MAX_LISTED:
        yield labeled("", f"and {len(folders) - MAX_LISTED:,} more folders")


def tokenizer_lines(url: str) -> Iterator[str]:
    """Yield what a tokenizer.json holds. Raises DataError if it is damaged."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(storage.read(url).decode())
    except Exception as error:  # the package raises plain Exception
        raise DataError(f"{url} is no tokenizer that can be read: {error}.") from error
    yield labeled("tokenizer", f"{type(tokenizer.model).__name__}, {tokenizer.get_vocab_size():,} tokens")
    special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    yield labeled("special", " ".join(special[:10]) or "none")


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15


# Files and corpora


def explain(path: str, rows: int) -> Iterator[str]:
    """Yield lines on a folder or a file that is no finished result of the pipeline.

    Raises DataError if it does not exist, or if it is text that cannot be read.
    """
    if path.startswith(READ_ONLY):
        yield from _of_text(path, rows)
        return
    if not storage.exists(path):
        if not {"*", "?", "["} & set(path):
            raise DataError(
                f"{path} does not exist. Give a folder or a file that a command wrote, a model or a corpus."
            )
        yield from _of_text(path, rows)  # which takes a pattern, too
        return
    if storage.is_local(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise DataError(f"{path} is neither a file nor a folder, but a device or a pipe. Give a file or a folder.")

    if is_file(path):
        yield from _of_file(path, rows)
        return
    folder = Folder(path)
    kind = kind_of(folder)
    if kind in LINES:
        yield f"{path}: {kind}"
        yield from LINES[kind](folder)
        return

    inside = list(results_inside(folder))
    if inside:
        yield f"{path}: a folder with results. `clozeline inspect` says more of each"
        yield from inside
    else:
        yield from _of_text(path, rows)


SETTINGS = {
    "corpus": ("corpora for --inputs", "clozeline shard --inputs {path} --output DIR"),
    "shard": (
        "the plan of `clozeline start`",
        "the command in its first lines, which `clozeline inspect` of its folder prints, too",
    ),
    "model": ("a recipe", "clozeline train --config {path}"),
    "tasks": ("a suite", "clozeline suite FOLDER --suite {path} --output DIR"),
    "minimal_pairs": ("a suite", "clozeline suite FOLDER --suite {path} --output DIR"),
    "kind": ("a task", "clozeline finetune FOLDER --task {path} --output DIR"),
    "rules": ("rules for --filters", "clozeline shard --input FILES --filters {path} --output DIR"),
    "sets": ("rules for --filters", "clozeline shard --input FILES --filters {path} --output DIR"),
}
"""What a TOML file is that has this key, and what takes it."""

PAGES = ("report.html", "card.html")
LEDGER = "ledger.parquet"  # of pipeline/text_card.py, which takes long to load


def _of_file(path: str, rows: int) -> Iterator[str]:
    folder, _, name = path.rpartition("/")
    folder = folder or "."
    of_folder = f"clozeline inspect {shlex.quote(folder)}"
    if name == kinds.TOKENIZER_FILE:
        yield f"{path}: a tokenizer"
        yield from (*tokenizer_lines(path), *next_is(of_folder))
    elif name.endswith(".toml"):
        yield from _of_settings(path)
    elif name in PAGES or (name.endswith(".html") and what_is(folder) not in ("", kinds.EMPTY)):
        yield from (f"{path}: a page", *next_is("open it with a browser"))
    elif name == LEDGER and storage.exists(storage.join(folder, kinds.MANIFEST)):
        yield f"{path}: the ledger of {what_is(folder)}, a table of what was left out or cut, and why"
        yield labeled("columns", '"File formats" in the documentation explains them')
        yield from next_is(of_folder)
    elif name in kinds.PARTS or _is_json_of_ours(folder, name):
        yield from (f"{path}: a part of {what_is(folder) or 'its folder'}", *next_is(of_folder))
    else:
        yield from _of_text(path, rows)


def _is_json_of_ours(folder: str, name: str) -> bool:
    """Return whether a JSON file is of a folder that our commands write. A corpus may lie in that of a model."""
    is_setting = name.endswith("config.json")
    return name.endswith(".json") and what_is(folder) not in ("", kinds.EMPTY, *([] if is_setting else [kinds.MODEL]))


def _of_settings(path: str) -> Iterator[str]:
    try:
        content = tomllib.loads(storage.read(path).decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}.") from error
    what, command = next((SETTINGS[key] for key in SETTINGS if key in content), ("a TOML file, none of ours", ""))
    yield f"{path}: {what}"
    if what == SETTINGS["corpus"][0]:
        from pipeline.readers.corpora import read_corpora

        for corpus in read_corpora(path):
            yield labeled(corpus.name[:LABEL_WIDTH], f"{', '.join(corpus.patterns)}  {corpus.license}".rstrip())
    else:
        yield labeled("sections", ", ".join(key for key in content if isinstance(content[key], dict | list)) or "none")
    if command:
        yield from next_is(command.format(path=shlex.quote(path)))


def _of_text(path: str, rows: int) -> Iterator[str]:
    from pipeline.look import corpus_lines  # loads all readers, which folders of other kinds do not need

    return corpus_lines(path, rows)
