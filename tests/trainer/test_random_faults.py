"""Random damage to every kind of file that the programs read: bits, cuts, overwritten bytes and values of another type.

Each try damages one file of an otherwise good set-up and runs the command that reads it. The command must end in time,
without a traceback and with a documented exit code. If it ends with 0, then the damage must not show: what it wrote
equals what it writes from the good files. Only corpora are exempt from that, since damaged text is other text.
"""

from __future__ import annotations

import json
import random
import shutil
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
import zstandard

from schemas.manifest import NAME
from trainer.export.cli import main as export_main

pytestmark = pytest.mark.thorough

TRIES = 140
DOCUMENTED = {0, 2, 3, 4, 5}
WRONG_VALUES: list[Any] = [None, -1, 10**30, 1.5, "", "x" * 1000, "../../x", [], {}, [None], True, float("nan")]


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    place = rng.randrange(len(changed))
    changed[place] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    """Replace 8 bytes, as a write to the wrong place would."""
    changed = bytearray(data)
    place = rng.randrange(max(1, len(changed) - 8))
    changed[place : place + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, rng.randbytes(8)])
    return bytes(changed)


def change_a_value(data: bytes, rng: random.Random) -> bytes:
    """Replace one value of a JSON or TOML document by one of another type; other files lose a bit."""
    for read, write in ((json.loads, json.dumps), (lambda toml: tomllib.loads(toml.decode()), tomli_w.dumps)):
        try:
            document = read(data)
            holder, place = rng.choice(places_in(document))
            holder[place] = rng.choice(WRONG_VALUES)
            return write(document).encode()
        except (ValueError, TypeError, IndexError):
            continue
    return flip_bit(data, rng)


def places_in(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside a document."""
    keys: list[Any] = []
    if isinstance(document, dict):
        keys = list(document)
    elif isinstance(document, list):
        keys = list(range(len(document)))

    places = [(document, key) for key in keys]
    for key in keys:
        places += places_in(document[key])
    return places


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [flip_bit, truncate, overwrite, change_a_value]


@dataclass
class Outcome:
    """A command's end, and what it wrote in a form that can be compared; `result` is None when it refused."""

    code: int
    told: str
    result: Any


@dataclass
class Target:
    """Files of one kind, and the command that reads them.

    folder: what is copied before it is damaged. read: runs the command on a copy, writing into a second folder.
    """

    name: str
    folder: Path
    read: Callable[[Path, Path], Outcome]
    exempt: bool = False


@pytest.fixture(scope="module")
def targets(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Target]:
    command = request.getfixturevalue("command")
    training = request.getfixturevalue("training")
    text, vocab, pairs = (request.getfixturevalue(name) for name in ("text", "vocab", "pairs"))
    root = tmp_path_factory.mktemp("random_faults")
    corpora = make_corpora(request.getfixturevalue("documents"), root / "corpora")

    half = root / "half"
    training.trained(1, half, run__stop_at=6, checkpoint__every=3)
    counted = root / "statistics"
    assert command("statistics", "--pairs", pairs, "--output", counted).returncode == 0
    exported = root / "exported"
    assert export_main([str(half), "--output", str(exported)]) == 0
    recipe = root / "recipes"
    recipe.mkdir()
    shutil.copy("tests/recipes/small_bert.toml", recipe / "recipe.toml")

    def pipeline(*words: object, out: Path | None = None) -> Outcome:
        done = command(*words)
        result = (done.stdout, fingerprint(out) if out else None) if done.returncode == 0 else None
        return Outcome(done.returncode, done.stdout + done.stderr, result)

    def train(out: Path, **changes: object) -> Outcome:
        done = training.warm(1, out, **changes)
        result = training.losses(out) if done.returncode == 0 else None
        return Outcome(done.returncode, done.stdout + done.stderr, result)

    def export(run: Path, out: Path) -> Outcome:
        done = request.getfixturevalue("run")("python", "-m", "trainer.export", run, "--output", out)
        result = (out / "model.safetensors").read_bytes() if done.returncode == 0 else None
        return Outcome(done.returncode, done.stdout + done.stderr, result)

    def pairs_of(text_folder: Path, vocab_folder: Path, out: Path) -> Outcome:
        shape = ("--objective", "nsp", "--max_length", 32)
        return pipeline("pairs", "--text", text_folder, "--vocab", vocab_folder, "--output", out, *shape, out=out)

    def vocab_of(text_folder: Path, out: Path) -> Outcome:
        shape = ("--model", "wordpiece", "--size", 160)
        return pipeline("vocab", "--text", text_folder, "--output", out, *shape, out=out)

    def resume(run: Path, _: Path) -> Outcome:
        return train(run, checkpoint__every=3)

    def continue_from(folder: Path, out: Path) -> Outcome:
        return train(out, model__init_from=folder, run__stop_at=3)

    def start_from(statistics: Path, out: Path) -> Outcome:
        start = {"model__initial_embeddings": "cooccurrence"}
        return train(out, data__statistics=statistics, run__stop_at=3, **start)

    def recipe_at(folder: Path, out: Path) -> Outcome:
        return train(out, config=folder / "recipe.toml", run__stop_at=3)

    return [
        Target("corpus", corpora, lambda d, o: pipeline("shard", "--input", f"{d}/*", "--output", o, out=o), True),
        Target("text, vocab", text, vocab_of),
        Target("text, pairs", text, lambda d, o: pairs_of(d, vocab, o)),
        Target("text, verify", text, lambda d, o: pipeline("verify", d)),
        Target("vocabulary, pairs", vocab, lambda d, o: pairs_of(text, d, o)),
        Target("pairs, verify", pairs, lambda d, o: pipeline("verify", d)),
        Target("pairs, inspect", pairs, lambda d, o: pipeline("inspect", d), True),
        Target("pairs, train", pairs, lambda d, o: train(o, data__pairs=d, run__stop_at=3)),
        Target("statistics, verify", counted, lambda d, o: pipeline("verify", d)),
        Target("statistics, train", counted, start_from),
        Target("run, resume", half, resume),
        Target("run, export", half, export),
        Target("published folder, train", exported, continue_from, True),
        Target("recipe, train", recipe, recipe_at, True),
    ]


def make_corpora(documents: list[str], folder: Path) -> Path:
    """The documents in every format, one file each."""
    folder.mkdir(parents=True)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in documents).encode()
    (folder / "plain.jsonl").write_bytes(lines)
    (folder / "frames.jsonl.zst").write_bytes(zstandard.compress(lines))
    for name in ("gzip", "bz2", "lzma"):
        module = __import__(name)
        suffix = {"gzip": "gz", "bz2": "bz2", "lzma": "xz"}[name]
        half = len(lines) // 2 + lines[len(lines) // 2 :].index(b"\n") + 1
        streams = module.compress(lines[:half]) + module.compress(lines[half:])
        (folder / f"streams.jsonl.{suffix}").write_bytes(streams)
    (folder / "blocks.txt").write_text("\n\n".join(documents))
    pq.write_table(pa.table({"text": documents}), folder / "rows.parquet")
    return folder


def fingerprint(folder: Path) -> str | None:
    """What a finished folder says of its content; None for commands that write none."""
    manifest = folder / NAME
    return json.loads(manifest.read_text())["fingerprint"] if manifest.exists() else None


@pytest.fixture(scope="module")
def expected(targets: list[Target], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each command gives from the good files."""
    results = {}
    for target in targets:
        copy, out = fresh(target, tmp_path_factory.mktemp("good"))
        outcome = target.read(copy, out)
        assert outcome.code == 0, (target.name, outcome.told)
        results[target.name] = normalized(outcome.result, copy, out)
    return results


def fresh(target: Target, folder: Path) -> tuple[Path, Path]:
    copy = folder / "input"
    shutil.copytree(target.folder, copy)
    return copy, folder / "output"


def normalized(result: Any, copy: Path, out: Path) -> Any:
    """Without the names of the folders."""
    return json.loads(json.dumps(result, default=repr).replace(str(copy), "INPUT").replace(str(out), "OUTPUT"))


@pytest.mark.parametrize("number", range(TRIES))
def test_damage_is_refused_or_does_not_show(number: int, targets, expected, tmp_path: Path) -> None:
    rng = random.Random(number)
    target = targets[number % len(targets)]
    copy, out = fresh(target, tmp_path)
    files = sorted(path for path in copy.rglob("*") if path.is_file() and path.stat().st_size)
    file = rng.choice(files)
    damage = rng.choice(DAMAGES)
    file.write_bytes(damage(file.read_bytes(), rng))

    outcome = target.read(copy, out)

    what = f"{target.name}: {damage.__name__} of {file.relative_to(copy)}: exit {outcome.code}"
    print(what, outcome.told.strip().splitlines()[-1:] if outcome.code else "")
    assert "Traceback" not in outcome.told, (what, outcome.told)
    assert outcome.code in DOCUMENTED, (what, outcome.told)
    if outcome.code == 0 and not target.exempt:
        result, wanted = normalized(outcome.result, copy, out), expected[target.name]
        if "skipped 1 line without metrics" in outcome.told:  # of metrics.jsonl
            assert len(wanted) == len(result) + 1
            wanted = {step: wanted[step] for step in result}
        assert result == wanted, what
