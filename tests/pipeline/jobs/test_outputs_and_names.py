"""Names and places that a user may give, good and bad: each ends as it should, in one line, with nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.readers.listing import matching_files
from schemas.manifest import read_manifest
from tests.conftest import made

DOCUMENTS = "".join(json.dumps({"text": f"The cat saw dog {i}. It ran away."}) + "\n" for i in range(12))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A corpus of twelve documents."""
    path = tmp_path / "small.jsonl"
    path.write_text(DOCUMENTS)
    return path


def ends(done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
    """The command ended with `code` and one line that holds `message`."""
    assert done.returncode == code, done.stderr
    assert message in done.stderr, done.stderr
    assert done.stderr.startswith("clozeline: ") and done.stderr.count("\n") == 1, done.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# A: errors that workers raise


def test_an_error_of_a_worker_process_has_no_traceback(run, tmp_path) -> None:
    source = tmp_path / "a.txt"
    source.write_bytes(b"y" * 5_000_000)
    flags = ("--input", source, "--output", tmp_path / "out", "--direct_num_workers", 2)
    ends(run("python", "-m", "pipeline", "shard", *flags), 3, "put spaces between words")


# E: inputs that cannot be opened


def test_an_input_that_cannot_be_opened_is_named(command, tmp_path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("")
    long_name = "x" * 300
    for place, code, reason in (
        ("a", 2, "Too many levels of symbolic links"),
        (long_name, 2, "File name too long"),
        ("file/below", 2, "matches no file"),
    ):
        done = command("shard", "--input", tmp_path / place, "--output", tmp_path / "out")
        ends(done, code, reason)
        assert place in done.stderr
    assert not (tmp_path / "out").exists()


# F: names

NAMES = {
    "F-comma": "com,ma.jsonl",
    "F-bracket": "br[a]cket.jsonl",
    "F-chain": "a::b.jsonl",
    "F-newline": "new\nline.jsonl",
    "F-not-utf-8": os.fsdecode(b"bad\xff.jsonl"),
    "F-star": "st*r.jsonl",
    "F-quote": "qu'o\"te #%41.jsonl",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_any_name_of_an_input_is_taken_literally(command, tmp_path, name: str) -> None:
    (tmp_path / name).write_text(DOCUMENTS)
    (tmp_path / "com").write_text('{"text": "Another file. It is not meant."}\n')
    made(command, tmp_path / "out", "shard", "--input", tmp_path / name)
    found = read_manifest(str(tmp_path / "out"), "text")
    assert found.totals["documents"] == 12
    assert len(found.inputs) == 1 and found.inputs[0].path.endswith(".jsonl")


def test_a_pattern_over_odd_names_and_a_list_of_them(command, tmp_path) -> None:
    for number, name in enumerate(NAMES.values()):
        (tmp_path / name).write_text(json.dumps({"text": f"Document {number}. It is short."}) + "\n")
    (tmp_path / "bad.jsonl").write_text("{\n")
    made(command, tmp_path / "out", "shard", "--input", f"{tmp_path}/*", "--max_bad_ratio", 0.5)
    assert read_manifest(str(tmp_path / "out"), "text").totals["documents"] == len(NAMES)
    assert command("verify", tmp_path / "out").returncode == 0

    listed = (f"{tmp_path}/com,ma.jsonl", f"{tmp_path}/st*r.jsonl,{tmp_path}/bad.jsonl")
    assert [Path(file.path).name for file in matching_files(*listed)] == ["bad.jsonl", "com,ma.jsonl", "st*r.jsonl"]


def test_a_record_rejected_from_a_file_with_a_bad_name_is_kept(command, tmp_path) -> None:
    (tmp_path / NAMES["F-not-utf-8"]).write_text(DOCUMENTS + "{\n")
    flags = ("--output", tmp_path / "out", "--max_bad_ratio", 0.5)
    assert command("shard", "--input", f"{tmp_path}/bad*", *flags).returncode == 0
    (rejected,) = (tmp_path / "out" / "rejected").iterdir()
    assert json.loads(rejected.read_text())["path"].endswith("bad\\xff.jsonl")


OUTPUTS = {"F-output-chain": "o::x", "F-output-not-utf-8": os.fsdecode(b"o\xff"), "F-output-newline": "o\nx"}


@pytest.mark.parametrize("name", OUTPUTS.values(), ids=OUTPUTS)
def test_any_name_of_an_output_can_be_written_and_read(run, small, tmp_path, name: str) -> None:
    done = run("python", "-m", "pipeline", "shard", "--input", small, "--output", tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1 and done.stderr == ""
    found = sorted(path.name for path in (tmp_path / name).iterdir())
    assert found == ["card.html", "ledger.parquet", "manifest.json", "text-00000-of-00001.arrow"]
    assert run("python", "-m", "pipeline", "verify", tmp_path / name).returncode == 0


# G: outputs that cannot be written

UNWRITABLE = {
    "G-under-a-file": ("{tmp}/small.jsonl/x", "is not a folder"),
    "G-a-file": ("{tmp}/small.jsonl", "is not a folder"),
    "G-dev-null": ("/dev/null", "is not a folder"),
    "G-proc": ("/proc/xx", "cannot be written"),
}


@pytest.mark.parametrize(("output", "reason"), UNWRITABLE.values(), ids=UNWRITABLE)
def test_an_output_that_cannot_be_written_ends_before_any_work(command, small, tmp_path, output, reason) -> None:
    before = contents(tmp_path)
    done = command("shard", "--input", small, "--output", output.format(tmp=tmp_path))
    ends(done, 5, reason)
    assert contents(tmp_path) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_an_output_on_a_read_only_disk_ends_before_any_work(command, small, tmp_path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], check=False).returncode:
        pytest.skip("this machine does not let its root mount")
    try:
        ends(command("shard", "--input", small, "--output", disk / "out"), 5, "read-only")
    finally:
        subprocess.run(["umount", disk], check=True)


# H: object stores out of reach

UNREACHABLE = {
    "H-input": "shard --input s3://bucket/a.jsonl --output {tmp}/out",
    "H-input-pattern": "shard --input s3://bucket/*.jsonl --output {tmp}/out",
    "H-output": "shard --input {tmp}/small.jsonl --output s3://bucket/o",
    "H-text": "vocab --text s3://bucket/text --output {tmp}/out --model wordpiece --size 100",
    "H-pairs-text": "pairs --text s3://bucket/text --vocab {tmp} --output {tmp}/out --objective nsp",
    "H-inspect-shard": "inspect s3://bucket/text-00000-of-00001.arrow",
    "H-inspect": "inspect s3://bucket/text",
    "H-verify": "verify s3://bucket/text",
}


@pytest.mark.parametrize("arguments", UNREACHABLE.values(), ids=UNREACHABLE)
def test_a_store_out_of_reach_is_named(command, small, tmp_path, store_out_of_reach, arguments: str) -> None:
    done = command(*arguments.format(tmp=tmp_path).split())
    ends(done, 5, "cannot be reached (EndpointConnectionError")
    assert "s3://bucket/" in done.stderr and "credentials" in done.stderr
    assert not (tmp_path / "out").exists()


# I: empty names of folders

EMPTY = {
    "I-shard-input": ("shard", "--input", "", "--output", "x"),
    "I-shard-output": ("shard", "--input", "x", "--output", ""),
    "I-vocab-text": ("vocab", "--text", "", "--output", "x", "--model", "wordpiece", "--size", "99"),
    "I-vocab-output": ("vocab", "--text", "x", "--output", " ", "--model", "wordpiece", "--size", "99"),
    "I-pairs-text": ("pairs", "--text", "", "--vocab", "x", "--output", "x", "--objective", "nsp"),
    "I-pairs-vocab": ("pairs", "--text", "x", "--vocab", "", "--output", "x", "--objective", "nsp"),
    "I-pairs-output": ("pairs", "--text", "x", "--vocab", "x", "--output", "", "--objective", "nsp"),
    "I-inspect": ("inspect", ""),
    "I-verify": ("verify", ""),
}


@pytest.mark.parametrize("arguments", EMPTY.values(), ids=EMPTY)
def test_an_empty_name_is_not_the_root_folder(command, arguments: tuple[str, ...]) -> None:
    ends(command(*arguments), 2, "is empty")


# J: a damaged manifest at the output

DAMAGED = {
    "J-not-json": "{broken",
    "J-a-list": "[]",
    "J-a-string": '"x"',
    "J-empty": "",
    "J-foreign": '{"name": "app"}',
}


@pytest.mark.parametrize("manifest", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_replaced_by_overwrite_alone(command, small, tmp_path, manifest: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text(manifest)
    shard = ("shard", "--input", small, "--output", out)
    ends(command(*shard), 3, "--overwrite to replace")
    assert contents(out) == {str(out / "manifest.json"): manifest.encode()}
    assert command(*shard, "--overwrite").returncode == 0
    assert command("verify", out).returncode == 0


@pytest.mark.parametrize("flag", [(), ("--overwrite",)], ids=["J-a-folder", "J-a-folder-overwrite"])
def test_a_folder_in_the_manifests_place_is_named(command, small, tmp_path, flag) -> None:
    (tmp_path / "out" / "manifest.json").mkdir(parents=True)
    done = command("shard", "--input", small, "--output", tmp_path / "out", *flag)
    ends(done, 2, "out/manifest.json cannot be opened: Is a directory")
