"""`clozeline inspect`: any folder or file is named in a few lines, with what to do next."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from clozeline.cli import main
from pipeline import look
from pipeline.inspection import inspect_all
from schemas import storage
from schemas.errors import DataError

METRICS = '{"step": 40, "mlm_loss": 4.5}\n{"step": 40, "eval_mlm_loss_masked": 4.25, "eval_unigram_loss": 6.5}\n{"st'
RECIPE = (
    "[model]\nfamily = 'bert'\nnum_hidden_layers = 2\nhidden_size = 64\n[data]\npairs = 'p'\n[run]\nmax_steps = 80\n"
)
SCORES = {"test": {"accuracy": {"mean": 0.75}}}
RESULTS = {"task": "films", "kind": "sentence", "encoder": "hf", "summary": SCORES}
SUITE = {"suite": "glue", "scores": {}, "averages": {"hf": {"spread": {"mean": 0.5}}}}
CONFIG = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 64}
START: dict[str, Any] = {
    "clozeline.toml": "[start]\nfolder = 'my texts'\n[vocab]\nsize = 300\n[pairs]\n",
    "steps.json": {"shard": {"is_done": True}}
    | {name: {"is_done": True, "options": {"size": 400} if name == "vocab" else {}} for name in ("vocab", "pairs")},
}

MANIFEST = {"files": [{"path": "state.json", "bytes": 2}]}

FOLDERS: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "run": (
        {"recipe.toml": RECIPE, "metrics.jsonl": METRICS}
        | {"checkpoints/step-00000040/state.json": {}, "checkpoints/step-00000040/manifest.json": MANIFEST},
        ["the folder of a run", "bert, 2 layers of 64", "step 40 of 80", "4.25 nats; word frequencies alone give 6.50"],
        "clozeline export {at}/run --output {at}/run_hf",
    ),
    "cut": (
        {"recipe.toml": RECIPE.replace("80", "40"), "metrics.jsonl": METRICS}
        | {f"checkpoints/step-{step}/state.json": " " * size for step, size in (("20", 2), ("40", 1), ("9.partial", 0))}
        | {f"checkpoints/step-{step}/manifest.json": MANIFEST for step in ("20", "40")},
        ["2, the newest step-40\ndamaged     ", "step-40/state.json is missing, or was cut or changed\n"],
        "the command that began it continues it; if that ended with an error, remove the cause first\n"
        "next        clozeline export {at}/cut --step 20 --output {at}/cut_hf",
    ),
    "lost": (
        {"recipe.toml": RECIPE, "lock": "", "checkpoints/step-40/state.json": {}},
        ["damaged ", "step-40/manifest.json is missing"],
        "restore these files, or begin a new run with another run.output",
    ),
    "checkpoint": (
        {"state.json": {"step": 40, "tokens": 1200}, "manifest.json": {"files": [{"path": "state.json", "bytes": 28}]}},
        ["a checkpoint", "40 after 1,200 tokens"],
        "clozeline export {at}/checkpoint --step 40 --output DIR",
    ),
    "model": ({"config.json": CONFIG}, ["a model in the Hugging Face format", "BertForMaskedLM"], "clozeline finetune"),
    "tuned": ({"results.json": RESULTS, "hf/config.json": CONFIG}, ["films", "accuracy 0.7500"], "from_pretrained("),
    "tuning": (
        {"task.toml": "name = 'films'\nkind = 'sentence'\n", "inputs.json": {}, "seed-0/x": ""},
        ["unfinished; begun: seed-0"],
        "the command that began it continues it",
    ),
    "suite": ({"results.json": SUITE}, ["the output of a suite", "hf: 0.5000 on average"], "the command that made it"),
    "start": (
        START,
        ["a folder of `clozeline start`", "my texts", "done        shard, pairs\noutdated    vocab, "],
        "clozeline start 'my texts' --output",
    ),
    "stale": (
        START
        | {"clozeline.toml": "[vocab]\nsize = 400\n", "hf/config.json": {}}
        | {"steps.json": START["steps.json"] | {"train": {"is_done": False}, "export": {"is_done": True}}},
        ["done        shard, vocab, pairs\nunfinished  train\noutdated    export, and what is made of it, of "],
        "clozeline start FOLDER --output",
    ),
    "unfinished": ({"_unfinished-12/piece": ""}, ["a job that is not finished"], "if that ended with an error, remove"),
    "empty": ({}, ["an empty folder"], "clozeline start YOUR_TEXTS --output {at}/empty"),
    "dataset": (
        {"state.json": {"_fingerprint": "4f"}, "a.txt": "The river is long.\n", "results.json/a.txt": "A house.\n"},
        ["2 x", "The river is long."],
        "clozeline start {at}/dataset",
    ),
    "books": (
        {"a.txt": "The river is long. The house is small.\n", "page.png": "\x89PNG"},
        ["2 files", "read", "left out", "The river is long."],
        "clozeline start {at}/books",
    ),
    "broken": (START | {"clozeline.toml": "["}, ["done        shard, vocab, pairs"], "clozeline start FOLDER --output"),
    "damaged": ({"recipe.toml": "=", "metrics.jsonl": "[" * 10**5}, ["the folder of a run", "step 0"], "the command"),
}
"""Files of each folder, what is said of it, and what comes next."""


def write(folder: Path, files: dict[str, object]) -> None:
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="latin-1")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_named_with_what_is_next(command, name: str, tmp_path: Path) -> None:
    files, told, following = FOLDERS[name]
    write(tmp_path / name, files)
    done = command("inspect", tmp_path / name, "--rows", 1)
    assert (done.returncode, done.stderr) == (0, "")
    assert [text for text in told if text not in done.stdout] == []
    last = done.stdout[done.stdout.index("\nnext ") :]
    assert following.format(at=tmp_path) in last
    assert done.stdout.count("\n") < 15


def test_folders_inside_are_told_apart_from_files_and_counted(tmp_path: Path, monkeypatch) -> None:
    write(tmp_path / "runs", {f"{number:02}.txt": "Words." for number in range(32)})
    for number in range(32):
        write(tmp_path / "runs" / f"v1.{number:02}", {"recipe.toml": RECIPE, "lock": ""})
    lines = list(inspect_all([f"{tmp_path}/runs"], 1))
    assert lines[1].split(maxsplit=1) == ["v1.00", "the folder of a run"]
    assert len(lines) == 22 and lines[-1].strip() == "and 12 more folders"

    inside = tmp_path / "run" / "checkpoints" / "step-00000040"
    write(inside, {"state.json": {"step": 40}, "x": "", "manifest.json": {"files": [{"path": "x", "bytes": 0}]}})
    monkeypatch.chdir(inside)
    assert f"clozeline export {tmp_path}/run --step 40" in "".join(inspect_all(["."], 1))
    (inside / "x").write_text("words")
    assert "restore it, or use another checkpoint" in "".join(inspect_all(["."], 1))


def test_a_large_folder_is_looked_at_in_part(tmp_path: Path, monkeypatch) -> None:
    pictures: dict[str, object] = {f"a{number}.png": "\x89PNG\r\n\x1a\n" for number in range(6)}
    write(tmp_path / "mixed", pictures | {f"b{number}.txt": "The river." for number in range(6)})
    assert "document    The river." in list(inspect_all([f"{tmp_path}/mixed"], 5))
    monkeypatch.setattr(look, "MAX_OPENED", 3)
    assert "not opened" in "\n".join(inspect_all([f"{tmp_path}/mixed"], 1))


def test_the_text_of_tables_is_estimated_by_their_rows(tmp_path: Path) -> None:
    texts = [f"The river has {number} bridges and as many boats." for number in range(300)]
    pictures = [os.urandom(20_000) for _ in texts]
    pq.write_table(pa.table({"text": texts, "image": pictures}), tmp_path / "some.parquet")
    expected = sum(map(len, texts))
    found = look.look_at(str(tmp_path / "some.parquet"))
    assert (found.documents, found.text_bytes) == (300, expected)

    table = pa.table({"body": [text.encode() for text in texts] * 20, "image": [b"x" * 5000] * 6000})
    pq.write_table(table, tmp_path / "many.parquet")
    found = look.look_at(str(tmp_path / "many.parquet"))
    assert found.text_key == "body" and abs(found.documents - 6000) < 60


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", '{"text": "The \\ud800 river."}\n', "document    The"),
        ("a.jsonl", '{"text": "The river."}\n' + '{"text": ' + "[" * 10_000 + "]" * 10_000 + "}\n", "The river."),
        ("a.csv", "sep=;\nid;text\n1;The river.\n2;The bridge.\n3;The boat.\n", "The river."),
        ("a.html", f"<html><body><p>{'The river is long. ' * 20}</p></body></html>", "document    The river"),
    ],
)
def test_what_shard_reads_is_looked_at(tmp_path: Path, name: str, content: str, told: str) -> None:
    (tmp_path / name).write_text(content)
    assert told in "\n".join(inspect_all([str(tmp_path / name)], 1))


def test_a_stream_of_arrow_is_looked_at(tmp_path: Path) -> None:
    table = pa.table({"text": ["The river is long."]})
    with pa.ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write(table)
    assert "document    The river is long." in "\n".join(inspect_all([str(tmp_path / "a.arrow")], 1))


DUMP = "<mediawiki>\n<page>\n<ns>0</ns>\n<text>The river is long.</text>\n</page>\n</mediawiki>\n"
NOT_WHOLE = "cannot be read to its end"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.xml.bz2", bz2.compress(DUMP.encode() * 99)[:-9], NOT_WHOLE),
        ("a.jsonl.gz", gzip.compress(b'{"text": "The river is long."}\n' * 9999)[:-99], NOT_WHOLE),
        ("a.xml", DUMP.replace("\n", "").encode() * 9, "not alone on its line, at byte 0 of * xmllint --format FILE"),
        ("a.jsonl", b'{"text": "A river."}\n[]\n', "line is not a JSON object, at byte 21 of * --format json"),
        ("a.json", b'[{"text": "The river is long."}, {"text": "cut', r"not JSON \(it ends early\), at byte 33"),
        ("a.txt.bz2", b"The river is long.", "is not bz2, although its name says so"),
    ],
)
def test_a_damaged_file_is_not_recommended(command, name: str, content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    done = command("inspect", tmp_path / name)
    said = done.stdout + done.stderr
    assert re.search(told.replace(" * ", ".* "), said), said
    assert "clozeline start" not in said and ".." not in said and done.returncode in (0, 3)

    (tmp_path / "b.txt").write_text("The house is small.\n" * 99)
    shown = command("inspect", tmp_path).stdout
    assert "clozeline start" not in shown or f"--exclude {name}" in shown or name == "a.json"


def test_an_archive_is_left_out_if_a_text_in_it_cannot_be_read(command, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "good.txt").write_text("The river is long. It is not wide.\n\n" * 3000)
    alone = about(command("inspect", folder).stdout)
    noise = "\n\n".join(f"The river is long {number} \xe9\xff\xfe\x81" for number in range(300))
    with ZipFile(folder / "noise.zip", "w") as archive:
        archive.writestr("a/noise.txt", noise.encode("latin-1"))
        archive.writestr("a/more.txt", bytes(range(128, 256)) * 3 + noise.encode("latin-1"))
    shown = command("inspect", folder).stdout
    assert "--exclude noise.zip" in shown and about(shown) == alone, "what is left out must not count"

    for _ in range(2):  # the second finds the plan of the first
        assert main(["start", str(folder), "--output", str(tmp_path / "out"), "--plan_only"]) == 0
    assert 'exclude = ["noise.zip"]' in (tmp_path / "out/clozeline.toml").read_text()


def about(shown: str) -> str:
    (line,) = [line for line in shown.splitlines() if line.startswith("About ")]
    return line


def test_what_is_next_for_an_archive_reads_texts_in_other_encodings(command, tmp_path: Path) -> None:
    text = "Die Flüsse sind für große Schiffe zu schmal. Sie führen wenig.\n" * 99
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", text.encode("latin-1"))
    shown = command("inspect", tmp_path / "a.zip").stdout
    next_is = shown.rpartition("clozeline shard ")[2].partition("    or step")[0]
    assert "--encoding auto" in next_is
    done = command("shard", *shlex.split(next_is.replace("DIR", str(tmp_path / "out"))))
    assert done.returncode == 0, done.stderr


def test_settings_that_are_nested_too_deep_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text("a = " + "[" * 10**5)
    with pytest.raises(DataError, match="is not TOML"):
        list(inspect_all([f"{tmp_path}/deep.toml"], 1))


def test_verify_checks_every_folder(command, vocab: Path, tmp_path: Path) -> None:
    shutil.copytree(vocab, tmp_path / "cut")
    os.truncate(tmp_path / "cut/word_counts.arrow", 10)
    done = command("inspect", tmp_path / "cut")
    assert done.returncode == 3 and "word_counts.arrow has 10 bytes, but manifest.json says" in done.stderr
    assert f"`clozeline verify {tmp_path}/cut` checks every file" in done.stderr and "\nnext " not in done.stdout
    (tmp_path / "cut/vocab.txt").unlink()
    assert "vocab.txt does not exist, but manifest.json names it" in command("inspect", tmp_path / "cut").stderr

    done = command("verify", tmp_path / "none", vocab)
    assert done.returncode == 3 and f"1 of 2 did not pass: {tmp_path}/none." in done.stderr
    assert f"{tmp_path}/none does not exist" in done.stdout and "ok  tokenizer.json" in done.stdout


def test_verify_names_every_bad_or_missing_shard(command, text: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(text, tmp_path / "text")
    names = [f"text-0000{number}-of-00003.arrow" for number in range(3)]
    (copy / names[2]).unlink()
    done = command("verify", copy)
    advice = "Copy the folder again or rebuild it with --overwrite."
    missing = f"{copy}/{names[2]} does not exist, but manifest.json names it. {advice}"
    assert done.returncode == 3 and done.stderr == f"clozeline: {missing}\n"
    assert f"ok  {names[1]}" in done.stdout and f"bad {names[2]}" in done.stdout

    os.truncate(copy / names[0], 10)
    done = command("verify", copy)
    assert done.returncode == 3 and f"2 of 3 files of {copy} are bad: {names[0]}, {names[2]}. {advice}" in done.stderr
    assert f"{copy}/{names[0]} has 10 bytes" in done.stdout and missing in done.stdout


def test_a_run_on_a_store_has_its_checkpoints() -> None:
    manifest = json.dumps({"files": [{"path": "x", "bytes": 0}]})
    files = {"recipe.toml": RECIPE, "metrics.jsonl": METRICS}
    files |= {"checkpoints/step-00000080/x": "", "checkpoints/step-00000080/manifest.json": manifest}
    for name, content in files.items():
        storage.publish(f"memory://inspected/run/{name}", content.encode())
    text = "\n".join(inspect_all(["memory://inspected/run"], 1))
    assert "1, the newest step-00000080" in text and "clozeline export memory://inspected/run" in text


def test_files_are_named_too(command, vocab: Path, pairs: Path, tmp_path: Path) -> None:
    write(tmp_path / "my files", {"a.jsonl": '{"body": "Some words here."}\n', "corpora.toml": "", "run.toml": RECIPE})
    folder = tmp_path / "my files"
    (folder / "corpora.toml").write_text('[[corpus]]\nname = "wiki"\ninput = "wiki/*.txt"\nlicense = "CC0"\n')
    pq.write_table(pa.table({"content": ["Words in a column."]}), folder / "a.parquet")
    save_file({"a": np.zeros((3, 4), np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    shutil.copy(vocab / "tokenizer.json", folder)

    shown = {name: command("inspect", folder / name).stdout for name in sorted(os.listdir(folder))}
    assert "--text_key body" in shown["a.jsonl"] and "Some words here." in shown["a.jsonl"]
    assert "--text_key content" in shown["a.parquet"]
    assert "wiki/*.txt  CC0" in shown["corpora.toml"] and "clozeline shard --inputs '" in shown["corpora.toml"]
    assert "a recipe" in shown["run.toml"]
    assert "WordPiece, " in shown["tokenizer.json"] and "[MASK]" in shown["tokenizer.json"]
    assert "a part of a model" in shown["config.json"]
    assert "12 parameters" in command("inspect", folder).stdout
    ledger = command("inspect", pairs / "ledger.parquet").stdout.splitlines()
    assert ledger[0].startswith(f"{pairs}/ledger.parquet: the ledger of pair shards, a table of what ")
    assert ledger[-1].split() == ["next", "clozeline", "inspect", str(pairs)]
    write(tmp_path / "started", START)
    step = command("inspect", tmp_path / "started/steps.json").stdout
    assert "steps.json: a part of a folder of `clozeline start`\n" in step

    together = command("inspect", vocab, tmp_path / "none", pairs, "--rows", 1)
    assert together.returncode == 3 and "1 of 3 cannot be shown" in together.stderr
    assert f"clozeline pairs --text TEXT --vocab {vocab}" in together.stdout
    assert f"{tmp_path}/none does not exist" in together.stdout
    assert f"--set data.pairs={pairs}" in together.stdout


def test_tables_for_tasks_hold_no_text(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"tokens": ["Anna", "sings"], "tags": ["PER", "O"]}\n')
    with pytest.raises(DataError, match=r"1 x jsonl without text: no text under its key .* `clozeline finetune`"):
        list(inspect_all([str(tmp_path)], 1))


def test_records_whose_text_is_within_others_are_read_by_dotted_keys(tmp_path: Path) -> None:
    talks = [{"talk_id": f"t_{number}", "turns": [{"words": "It rained all day."}]} for number in range(9)]
    (tmp_path / "talks.json").write_text(json.dumps(talks))
    (tmp_path / "a.txt").write_text("The river is long.\n")
    told = "\n".join(inspect_all([str(tmp_path)], 1))
    assert "--text_key turns.words " in told.partition("next  ")[2] and "of text in 10 documents" in told


def test_files_that_would_end_a_job_are_left_out(command, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The river is long.\n")
    (tmp_path / "broken.json").write_text('{"text": "It rained", "n": }')
    assert "repair the files" in command("inspect", tmp_path).stdout
    told = command("inspect", tmp_path, "--exclude", "broken.json").stdout
    assert f"{tmp_path}: 1 file, " in told and "--output DIR --exclude broken.json " in told
    misspelled = command("inspect", tmp_path, "--exclude", "brokn.json")
    assert misspelled.returncode == 3 and "--exclude brokn.json is none of the 2 files" in misspelled.stderr


def test_estimates_of_files_that_differ(tmp_path: Path) -> None:
    """Many small ones among large ones, and files with much else than text."""
    for number in range(1500):
        (tmp_path / f"{number}.txt").write_text("The river is long and wide.\n")
    for number in range(4):
        (tmp_path / f"book{number}.txt").write_text("It rained all day long.\n\n" * 5000)
    found = look.look_at(str(tmp_path))
    assert found.text_layout == "file" and found.documents == 1504

    tables = tmp_path / "tables"
    tables.mkdir()
    for number in range(40):
        (tables / f"big{number}.json").write_text(json.dumps({"sizes": [1] * 20_000}))
        (tables / f"rows{number}.json").write_text(json.dumps([{"text": "It rained all day."}] * 30))
    found = look.look_at(str(tables))
    assert 1200 <= found.documents < 1300 and found.text_bytes == found.documents * 18


def test_the_few_files_of_a_rare_kind_are_all_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "MAX_OPENED", 100)
    for number in range(1000):
        (tmp_path / f"{number:04}.txt").write_text("The river is long and wide.\n")
    rare = [tmp_path / f"{number:04}x.csv" for number in (5, 500, 995)]
    for path in rare:
        path.write_text("id,size\n1,2\n")
    assert sorted(look.look_at(str(tmp_path)).unreadable) == [str(path) for path in rare]


def test_records_without_text_are_said_to_have_none(tmp_path: Path) -> None:
    (tmp_path / "sizes.json").write_text(json.dumps([{"sizes": [number, {"unit": "cm"}]} for number in range(9)]))
    (tmp_path / "a.txt").write_text("The river is long.\n")
    told = "\n".join(inspect_all([str(tmp_path)], 1))
    assert "json without text: no text under its key" in told and "as in data[].text" in told
    assert "--text_key" not in told.partition("next  ")[2] and "of text in 1 document" in told


@pytest.mark.parametrize("name", ["id", "talk_id", "pageUrl", "URL", "link"])
def test_ids_and_addresses_are_not_taken_for_the_text(name: str, tmp_path: Path) -> None:
    rows = "".join(json.dumps({name: f"{number:036}x", "answer": "It rained."}) + "\n" for number in range(9))
    (tmp_path / "a.jsonl").write_text(rows)
    assert "--text_key answer" in "\n".join(inspect_all([str(tmp_path)], 1))
