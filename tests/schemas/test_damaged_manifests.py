"""Manifests that others wrote or that a disk has damaged: refused with exit code 3, by `verify` and by every reader."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas import FORMAT_VERSION, storage
from schemas.manifest import read_manifest
from tests.damaged_folders import TRIES, Fields, damaged, outcome, read_all, read_fields, refused_by_both, write_fields
from trainer.config.load import load_recipe
from trainer.data.folder import open_folders

HOSTILE_NAMES = ["../victim.arrow", "s/../../victim.arrow", "/tmp/victim.arrow", "..", "", ".", "a\\..\\victim.arrow"]
HOSTILE_NAMES += ["file:///tmp/victim.arrow", "a::b.arrow", "two\nlines.arrow", "\ud800.arrow"]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=repr)
def test_names_of_shards_are_plain(command, text_copy: Path, vocab: Path, tmp_path: Path, name: str) -> None:
    """No reader opens, and no job writes, a file that a manifest places outside of its folder."""
    fields = read_fields(text_copy)
    victim = tmp_path / "victim.arrow"
    victim.write_bytes((text_copy / fields["shards"][0]["path"]).read_bytes())
    fields["shards"][0]["path"] = name
    write_fields(text_copy, fields)
    before = storage.sha256(victim.read_bytes())

    out = tmp_path / "deep" / "out"
    making = ("--text", text_copy, "--output", out)
    for words in (
        ("verify", text_copy),
        ("inspect", text_copy),
        ("vocab", *making, "--model", "wordpiece", "--size", 160),
        ("pairs", *making, "--vocab", vocab, "--objective", "nsp"),
    ):
        done = command(*words)
        assert done.returncode == 3 and "Traceback" not in done.stderr, done.stderr
        assert "shards.0.path" in done.stderr and "plain file name" in done.stderr
    assert storage.sha256(victim.read_bytes()) == before
    assert not out.exists()


def twice(fields: Fields) -> None:
    fields["shards"].append(fields["shards"][0])


def without(*keys: str) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        *path, last = keys
        for key in path:
            fields = fields[key]
        del fields[last]

    return change


def put(value: object, *keys: str | int) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        *path, last = keys
        inner: object = fields
        for key in path:
            inner = inner[key]  # type: ignore[index]
        inner[last] = value  # type: ignore[index]

    return change


BAD_MANIFESTS: dict[str, tuple[Callable[[Fields], None], str]] = {
    "a-shard-twice": (twice, "names pairs-00000-of-00003.arrow twice"),
    "no-max_length": (without("options", "max_length"), "options.max_length"),
    "max_length-in-words": (put("long", "options", "max_length"), "options.max_length"),
    "no-objective": (without("options", "objective"), "options.objective"),
    "unknown-objective": (put("chess", "options", "objective"), "options.objective"),
    "no-vocabulary": (without("options", "vocabulary"), "options.vocabulary"),
    "vocabulary-of-0-tokens": (put(0, "options", "vocabulary_size"), "options.vocabulary_size"),
    "no-total": (without("totals", "tokens"), "totals.tokens"),
    "another-total": (put(5, "totals", "rows"), "totals.rows"),
    "negative-rows": (put(-1, "shards", 0, "rows"), "shards.0.rows"),
    "huge-rows": (put(10**30, "shards", 0, "rows"), "shards.0.rows"),
    "hash-of-another-kind": (put("../x", "shards", 0, "sha256"), "shards.0.sha256"),
    "no-lengths": (without("statistics", "lengths"), "statistics.lengths"),
    "an-unknown-field": (put("red", "colour"), "colour"),
    "a-newer-format": (put(FORMAT_VERSION + 1, "format_version"), "Upgrade it"),
    "an-older-format": (put(FORMAT_VERSION - 1, "format_version"), "Make the folder again"),
    "lengths-of-other-rows": (put([0, 0, 5], "statistics", "lengths"), "statistics.lengths"),
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_bad_manifests_are_named_by_verify_and_the_trainer(command, copy: Path, name: str) -> None:
    change, told = BAD_MANIFESTS[name]
    fields = read_fields(copy)
    change(fields)
    write_fields(copy, fields)
    refused_by_both(command, copy, told)


def test_a_deeply_nested_manifest_is_an_error(command, copy: Path) -> None:
    (copy / "manifest.json").write_text('{"a":' * 50_000)
    refused_by_both(command, copy, "manifest.json")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_random_damage_to_a_manifest(command, copy: Path, seed: int) -> None:
    """Either it is refused, or what it decides about the rows is what it was."""
    draws = random.Random(seed)
    path = copy / "manifest.json"
    whole = path.read_bytes()
    good = read_manifest(str(copy), "pairs")
    recipe = load_recipe("tests/recipes/small_bert.toml", [f"data.pairs={copy}"])

    for number in range(TRIES):
        path.write_bytes(damaged(whole, draws))
        code = outcome(lambda: [folder.close() for folder in open_folders(recipe)])
        assert code in (0, 3), number
        if code == 0:
            found = read_manifest(str(copy), "pairs")
            assert (found.fingerprint, found.totals) == (good.fingerprint, good.totals), number
            assert outcome(lambda: read_all(copy)) in (0, 3), number
        done = command("verify", copy)
        assert done.returncode in (0, 3) and "Traceback" not in done.stderr, (number, done.stderr)


def wrong_type(value: object, draws: random.Random) -> object:
    """Another JSON value in the place of one."""
    values: list[object] = [None, True, -1, 2**70, 0.5, float("nan"), "", "x", "../x", [], [None], {}, {"a": 1}]
    return draws.choice([other for other in values if other != value])


def places_of(value: object, path: tuple = ()) -> list[tuple]:
    """The paths to everything inside a JSON value; of a long list its first items only."""
    found = [path] if path else []
    if isinstance(value, dict):
        for name, inner in value.items():
            found += places_of(inner, (*path, name))
    if isinstance(value, list):
        for i, inner in enumerate(value[:3]):
            found += places_of(inner, (*path, i))
    return found


def test_wrong_types_in_a_manifest(command, copy: Path) -> None:
    draws = random.Random(0)
    whole = (copy / "manifest.json").read_text()
    places = places_of(read_fields(copy))

    for place in draws.sample(places, min(TRIES, len(places))):
        fields = read_fields(copy)
        *path, last = place
        inner: object = fields
        for key in path:
            inner = inner[key]  # type: ignore[index]
        inner[last] = wrong_type(inner[last], draws)  # type: ignore[index]
        write_fields(copy, fields)
        assert outcome(lambda: read_all(copy)) in (0, 3), place
        for words in (("verify", copy), ("inspect", copy)):
            done = command(*words)
            assert done.returncode in (0, 3) and "Traceback" not in done.stderr, (place, done.stderr)
        (copy / "manifest.json").write_text(whole)
