"""`clozeline start`: from a folder to an encoder by one command, which continues, and repeats what changes concern."""

from __future__ import annotations

import json
import lzma
import os
import pty
import random
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.cli import main
from clozeline.start import plan_file
from pipeline.inspection import inspect_all
from tests import forked
from tests.conftest import Run
from tests.trainer.distributed.test_stop import wait_for
from trainer.checkpoint.run_lock import held

SMALL_RUN = """
"run.max_steps" = 12
"schedule.warmup_steps" = 2
"model.hidden_size" = 32
"model.intermediate_size" = 64
"run.log_every" = 4
"checkpoint.every" = 4
"evaluation.every" = 12
"""


@pytest.fixture
def folder(documents: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as people have them, with texts under three names, in a folder with a space in its name."""
    monkeypatch.chdir(tmp_path)
    folder = Path("my texts")
    folder.mkdir()
    (folder / "notes.txt").write_text("\n\n".join(documents[:20]))
    (folder / "a.jsonl").write_text(
        "".join(
            json.dumps({"id": "1", "body": text + "\u2028"}, ensure_ascii=False) + "\n" for text in documents[20:40]
        )
    )
    rows = [{"title": "A title", "content": text} for text in documents[40:60]]
    pq.write_table(pa.Table.from_pylist(rows), folder / "b.parquet")
    (folder / "c.csv").write_text("name,text\n" + "".join(f'{i},"{text}"\n' for i, text in enumerate(documents[60:80])))
    with zipfile.ZipFile(folder / "old.zip", "w") as archive:
        archive.writestr("d.txt", "\n\n".join(documents[80:120]))
    (folder / "old.txt").write_bytes("Gruß und Kuß aus München, Köln und Würzburg. Er läßt grüßen.".encode("cp1252"))
    shutil.copy(folder / "notes.txt", folder / "notes (1).txt")
    (folder / "cover.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(50))
    return folder


def plan_of(output: str = "out") -> dict:
    return tomllib.loads(Path(output, "clozeline.toml").read_text())


def change(old: str, new: str) -> None:
    path = Path("out/clozeline.toml")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_plan_says_what_is_read_and_why(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(folder), "--hours", "2", "--plan_only"]) == 0
    told = capsys.readouterr().out
    for count, kind in ((3, "text"), (1, "jsonl"), (1, "parquet"), (1, "csv"), (1, "zip")):
        assert re.search(rf"read +{count} x .* {kind}$", told, re.MULTILINE), told
    assert re.search(r"left out +1 x .* an image$", told, re.MULTILINE)
    assert "Not UTF-8: 1 x cp1252." in told
    assert "3 layers, 192 wide, 8 rows a step" in told
    assert "languages: en " in told and "clozeline shard --output out/text" in told

    plan = plan_of()
    assert plan["start"] == {"folder": "my texts"}
    assert plan["train"]["config"] == "cpu_hour" and plan["train"]["run.max_hours"] == 2
    assert plan["shard"]["language"] == "en"
    assert plan["shard"]["text_key"] == "text|content|body"
    assert plan["shard"]["corpus_name"] == "my texts"
    lines = Path("out/clozeline.toml").read_text().split("\n")
    at = lines.index("[vocab]")
    assert lines[at - 3 : at] == ['# corpus_license = "cc-by-4.0"', '# corpus_url = "https://..."', ""]
    assert [path.name for path in Path("out").iterdir()] == ["clozeline.toml"]


def test_one_command_goes_all_the_way_and_a_change_repeats_what_depends_on_it(folder: Path, run: Run) -> None:
    start = ("python", "-m", "clozeline", "start", folder)
    assert run(*start, "--plan_only").returncode == 0
    change("size = 4000", "size = 300")
    change('config = "cpu_minutes"', 'config = "tiny"')
    plan = Path("out/clozeline.toml")
    plan.write_text(re.sub('"run.max_hours".*\n', SMALL_RUN, plan.read_text()))

    done = run(*start)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Loss on held-out documents: " in done.stdout and "____ (" in done.stdout
    assert re.search(r"\d% of blanks are filled in exactly", done.stdout)
    explained = "The word in parentheses was hidden from the model"
    assert f"{explained}:\n" in done.stdout and f"{explained}." in Path("out/run/report.html").read_text()
    card = Path("out/hf/README.md").read_text()
    assert f"## Blanks that it filled in\n\n{explained}.\n\n| sentence | its words |" in card
    for name in ("text", "text_heldout", "vocab", "pairs", "held_out"):
        assert Path("out", name, "manifest.json").exists()
    assert Path("out/hf/model.safetensors").exists()
    documents = json.loads(Path("out/text/manifest.json").read_text())["totals"]["documents"]
    held_out = json.loads(Path("out/text_heldout/manifest.json").read_text())["totals"]["documents"]
    assert documents + held_out == 121

    shown = "\n".join(inspect_all(["out", "out/run", "out/run/checkpoints/step-00000012", "out/hf"], 1))
    assert "done        shard, vocab, pairs, held-out pairs, train, export" in shown
    assert "progress    step 12 of 12" in shown and "word frequencies alone give" in shown
    assert "step        12 after " in shown and " parameters" in shown

    card = Path("out/hf/README.md").read_text()
    assert "| my texts | not stated |" in card and "A license is not stated." in card
    assert re.search(r"By format, .*: text \d+, (csv|jsonl|parquet) 1\d, ", card)

    change('# corpus_license = "cc-by-4.0"', 'corpus_license = "CC0"')
    change("size = 300", "size = 320")  # the words of this text are fewer: the vocabulary is the same
    shutil.copy(folder / "notes.txt", folder / "notes (2).txt")  # whose documents are there already
    again = run(*start)
    assert again.returncode == 0 and again.stdout.count("done before") == 1, again.stdout
    assert "Changed: [shard] corpus_license: not set -> CC0\nChanged: [vocab] size: 300 -> 320\n" in again.stdout
    assert "Changed: the input: a file is new, gone or edited." in again.stdout
    assert "train: done before" in again.stdout and "9 files" in (card := Path("out/hf/README.md").read_text())
    assert "| my texts | CC0 |" in card and "not stated" not in card
    assert json.loads(Path("out/vocab/manifest.json").read_text())["options"]["size"] == 320

    change('"run.max_steps" = 12', '"run.max_steps" = 8')
    changed = run(*start)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    assert changed.stdout.count("done before") == 4 and "pairs: done before" in changed.stdout
    assert "the earlier run is kept as out/run_before_1" in changed.stdout

    os.rename("out", "moved")
    moved = run(*start, "--output", "moved")
    assert moved.returncode == 0 and moved.stdout.count("done before") == 6, moved.stdout + moved.stderr
    assert "Changed:" not in moved.stdout
    os.rename("moved", "out")

    (folder / "more.txt").write_text("A new document with a few words.\n")
    shutil.rmtree("out/hf")
    change('"run.max_steps" = 8', '"run.max_steps" = 1')
    failed = run(*start)
    assert failed.returncode == 2 and "toml, [train]: " in failed.stderr and "warmup_steps" in failed.stderr
    assert failed.stdout == ""

    change('"run.max_steps" = 1\n', '"run.max_steps" = 12\n')
    change("size = 320", "size = 6")
    failed = run(*start)
    assert failed.returncode == 3 and "cannot hold the alphabet" in failed.stderr
    assert (
        "[2/6] vocab failed; see the error above" in failed.stderr
        and "under [vocab] in out/clozeline.toml" in failed.stderr
    )
    assert "[1/6] shard\n" in failed.stdout and "[3/6]" not in failed.stdout
    sides = [json.loads(Path("out", name, "manifest.json").read_text()) for name in ("text", "text_heldout")]
    assert sum(side["totals"]["documents"] for side in sides) == 122


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_it_continues_where_it_was_interrupted(folder: Path, run: Run, number: int) -> None:
    start = ("python", "-m", "clozeline", "start", folder)
    assert run(*start, "--plan_only").returncode == 0
    change('config = "cpu_minutes"', 'config = "tiny"')
    change("size = 4000", "size = 300")
    plan = Path("out/clozeline.toml")
    small = SMALL_RUN.replace(" = 12", " = 240").replace('every" = 4', 'every" = 12')
    plan.write_text(re.sub('"run.max_hours".*\n', small, plan.read_text()))

    for seen in ("out/text/manifest.json", "out/vocab/manifest.json", "out/run/checkpoints/step-00000012"):
        process = forked.Command(start, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        wait_for(Path(seen), process)
        if number == signal.SIGTERM or (number == signal.SIGINT and "run" not in seen):  # as editors send it
            os.kill(process.pid, number)
        else:
            os.killpg(process.pid, number)
        output, _ = process.communicate(timeout=120)
        assert process.returncode in (-number, 75, 130, 143), output
        assert "Traceback" not in output

    change('"run.max_steps" = 240', '"run.max_steps" = 240  # as before')
    done = run(*start)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done before") == 4 and "Resuming from" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["my texts", "--output", "s3://bucket/out"], "is a URL"),
        (["blank"], "blank holds no text that can be read: 1 x text without text, 1 x an image."),
        (["cut"], "cut/b.parquet is not a readable Parquet file"),
        (["cut"], "cut/a.pdf: document that cannot be read. Repair the file"),
        (["short"], "34 bytes of text is too little to train on: cpu_minutes needs 8,192 bytes"),
        (["my texts", "--hours", "0.001"], "--hours 0.001 is too short: a training takes some 12 s to start"),
        (["arrays"], "no text that can be read: 1 x json without text: no text under its key (--text_key of"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("blank").mkdir()
    shutil.copy(folder / "cover.png", "blank")
    Path("blank/empty.txt").touch()
    for other, text in (
        ("short/a.txt", "The river is long. It is not wide."),
        ("arrays/a.json", '[\n {"pages":\n 9}]'),
        ("cut/a.pdf", "%PDF-1.4"),
        ("cut/b.parquet", "PAR1 and no end"),
    ):
        Path(other).parent.mkdir(exist_ok=True)
        Path(other).write_text(text)
    assert main(["start", *words]) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
    assert not Path("out").exists() or not any(Path("out").iterdir())


MISTAKES = [
    ("[vocab]", "[vocabs]", "there is no section 'vocabs'. Did you mean vocab?"),
    ("[vocab]", "[vocab", "is not TOML"),
    ("[pairs]", '[pairs]\ntext = "elsewhere"', "text connects the steps"),
    ("[pairs]", "[pairs]\nmasking = {kind = 1}", "must be a number, a string, true, false, or a list of these"),
    ("processes = 1", "processes = 0", "processes = 0 is not a number from 1 up"),
    ("size = 4000", "sizee = 4000", "toml, [vocab]: Unknown key sizee. Did you mean size?"),
    ("[shard]", "[shard]\nlowercase = true", "[shard]: Unknown key lowercase. Write it under [vocab]."),
    ("size = 4000", 'size = "big"', "toml, [vocab]: argument --size: 'big' is not a whole number above 0"),
    ("max_length = 128", "max_length = 512", "[pairs]: max_length 512 is above the 128 tokens that the model takes"),
    ("max_length", "short_seq_prob = 0.1\nmax_length", "toml, [pairs]: --short_seq_prob changes nothing"),
    ('"cpu_minutes"', '"bert_base"', "[train]: bert_base is for a vocabulary of 30522 entries, and size is 4000"),
    ('"cpu_minutes"', '"roberta_base"\n"model.vocab_size" = "none"', "roberta, of roberta_base, needs a vocab"),
    ("\ninput = ", "\n# input = ", "[shard]: there is no input = [...]"),
    ('"cpu_minutes"', '"cpu_minute"', "toml, [train]: --config cpu_minute does not exist. Did you mean cpu_m"),
    ("[export]", "best = true\n[export]", "[train]: best is no key of a recipe, which has the form section.key"),
    ("[export]", "best = true\n[export]", "It is a flag of `export`: write it under [export]."),
    ("[export]", "max_hours = 1\n[export]", "as in run.seed. Did you mean run.max_hours?"),
    ("[export]", "run.max_hours = 1\n[export]", "[train]: run.max_hours is there twice. Remove one"),
    ("[export]", "run = {}\n[export]", "[train]: run = {} must be a number"),
    ('"run.max_hours"', "run.maxhours", "unknown key run.maxhours. Did you mean run.max_hours?"),
    ("[export]", "[export]\naverage = 0", "toml, [export]: argument --average: "),
    (" = 0.17", " = 0.001", 'toml, [train]: "run.max_hours" 0.001 is too short'),
]


def test_a_mistake_in_the_plan_is_one_line(folder: Path, capsys) -> None:
    start = ["start", str(folder)]
    assert main([*start, "--plan_only"]) == 0
    plan = Path("out/clozeline.toml")
    written = plan.read_text()
    for old, new, told in MISTAKES:
        change(old, new)
        assert main(start) == 2
        said = capsys.readouterr().err
        assert told in said and said.count("\n") == 1
        plan.write_text(written)


@pytest.mark.parametrize("form", ['"run.max_hours"= 0.17', "[train.run]\nmax_hours = 0.17 "])
def test_a_key_in_a_form_that_a_flag_cannot_change_is_told(folder: Path, form: str, capsys) -> None:
    start = ["start", str(folder)]
    assert main([*start, "--plan_only"]) == 0
    change('"run.max_hours" = 0.17', form)
    assert main([*start, "--hours", "3"]) == 2
    said = capsys.readouterr().err
    assert 'change nothing in it. Change there: [train] config, [train] "run.max_hours".' in said
    assert said.count("\n") == 1


def test_flags_change_what_follows_from_them_and_nothing_before_consent(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["start", str(folder)]
    assert main([*start, "--hours", "0.05", "--plan_only"]) == 0
    told = capsys.readouterr().out
    train = plan_of()["train"]
    assert train["evaluation.every"] == train["checkpoint.every"] == 500  # of 1,500
    assert "Warning: 0.05 hours are few for cpu_minutes" in told and "of text is little. Expect a model" in told
    change("size = 4000 ", "size = 300  # for a test")
    (folder / "more.jsonl").write_text('{"essay": "A new kind of file."}\n' * 3)
    first = plan_of()

    leader, follower = pty.openpty()
    os.write(leader, b"n\n")
    with open(follower) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main([*start, "--language", "DE"]) == 0
    os.close(leader)
    assert "language = de" in (told := capsys.readouterr().out) and "Nothing was done." in told
    assert plan_of() == first

    assert main([*start, "--hours", "2", "--language", "German", "--plan_only"]) == 0
    second = plan_of()
    assert second["train"] == {"config": "cpu_hour", "processes": 1, "run.max_hours": 2}
    assert second["shard"] == first["shard"] | {"language": "de"} and second["vocab"] == first["vocab"]
    assert "  # for a test" in Path("out/clozeline.toml").read_text()

    assert main([*start, "--hours", "0.05", "--language", "en", "--plan_only"]) == 0
    assert "--hours 0.05 replaces run.max_hours = 2 of out/clozeline.toml." in capsys.readouterr().out
    assert plan_of() == first
    assert main(["start", "other"]) == 2
    assert "FOLDER other is not what out/clozeline.toml has, my texts. Change it there" in capsys.readouterr().err


def test_the_plan_of_a_live_start_is_not_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["start", str(folder), "--plan_only"]) == 0
    before = Path("out/clozeline.toml").read_text()
    with held(Path("out")):
        assert main(["start", str(folder), "--hours", "3", "--yes"]) == 2
    assert "in use by a live run" in capsys.readouterr().err
    assert Path("out/clozeline.toml").read_text() == before


def test_keys_of_the_recipe_need_no_quotes(folder: Path) -> None:
    start = ["start", str(folder), "--plan_only"]
    assert main([*start, "--hours", "0.05"]) == 0
    first = plan_file.parse(Path("out/clozeline.toml").read_text(), "")
    change('"run.max_hours" = 0.05', "run.max_hours = 0.06 ")
    assert main(start) == 0
    plan = plan_file.parse(Path("out/clozeline.toml").read_text(), "")
    assert plan["train"] == first["train"] | {"run.max_hours": 0.06}

    assert main([*start, "--hours", "0.05"]) == 0
    assert plan_file.parse(Path("out/clozeline.toml").read_text(), "") == first
    assert Path("out/clozeline.toml").read_text().count("max_hours") == 1


def test_a_recipe_that_learns_from_pair_labels_asks_for_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["start", str(folder), "--plan_only"]
    assert main(start) == 0
    assert "pair head" not in capsys.readouterr().out
    change('"cpu_minutes"', '"bert_base"\n"model.vocab_size" = "none"')
    assert main(start) == 0
    told = capsys.readouterr().out
    assert "Warning: bert_base is made for NSP" in told and 'Write objective = "nsp" under [pairs].' in told
    change('"full_sentences"', '"nsp"')
    assert main(start) == 0
    assert "pair head" not in capsys.readouterr().out
    change('"bert_base"', '"cpu_minutes"')
    assert main(start) == 0
    assert "Warning: cpu_minutes has no pair head" in capsys.readouterr().out


def test_results_of_other_commands_are_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ["start", str(folder), "--plan_only"]
    Path("out/text").mkdir(parents=True)
    Path("out/text/manifest.json").write_text("{}")
    assert main(start) == 2
    told = "--output out holds text, and no steps.json says that `start` made them. Give another --output, or write {} "
    assert told in capsys.readouterr().err
    Path("out/text/manifest.json").unlink()
    assert main(start) == 0
    Path("out/text/manifest.json").write_text("{}")
    assert main(start) == 2
    Path("out/steps.json").write_text("{}")
    assert main(start) == 0


def test_what_a_flag_of_shard_may_allow_ends_with_a_plan_for_that_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good = json.dumps({"text": "The river is long. " * 20}) + "\n"
    Path("bad.jsonl").write_text((good * 9 + good[:30] + "\n") * 20)
    assert main(["start", "bad.jsonl", "--yes"]) == 3
    said = capsys.readouterr()
    assert "More bad records than --max_bad_ratio 0.01" in said.err and said.err.count("\n") == 1
    assert "out/clozeline.toml is written; write such flags of `shard` under its [shard], then" in said.err
    assert "More bad" not in said.out
    change("[shard]", "[shard]\nmax_bad_ratio = 0.2")
    assert main(["start", "bad.jsonl", "--plan_only"]) == 0

    Path("mixed").mkdir()
    Path("mixed/good.txt").write_text("The river is long. It is not wide.\n\n" * 1000)
    chance = random.Random(1)
    noise = [b"The river is long" + bytes(chance.randrange(128, 256) for _ in range(3)) for _ in range(300)]
    Path("mixed/noise.txt").write_bytes(b"\n\n".join(noise))
    assert main(["start", "mixed", "--output", "noise", "--plan_only"]) == 0
    shown = capsys.readouterr().out
    assert "mixed/noise.txt is not UTF-8" in shown and "--exclude noise.txt" in shown
    assert "the plan leaves out what cannot be read, 1 of 2 files (exclude), an archive as a whole." in shown

    Path("mixed/noise.txt").unlink()
    assert main(["start", "mixed", "--output", "noise", "--plan_only"]) == 2
    error = capsys.readouterr().err
    assert "noise/clozeline.toml, [shard]: --exclude noise.txt is none of the 1 files of the input." in error
    Path("mixed/a.pdf").write_bytes(b"%PDF-1.4 and no more")
    assert main(["start", "mixed", "--output", "pdf", "--plan_only"]) == 0
    shown = capsys.readouterr().out
    assert "mixed/a.pdf: document that cannot be read. Repair" in shown and "--exclude a.pdf" in shown

    with lzma.open("small.txt.xz", "wt") as file:
        file.write("The river is long. It is not wide.\n\n" * 1000)
    assert main(["start", "small.txt.xz", "--output", "small", "--plan_only"]) == 0


def test_the_form_of_a_path_makes_no_other_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(Path.cwd()))
    assert main(["start", "~/my texts/", "--output", "~/out/", "--plan_only"]) == 0
    plan = Path("out/clozeline.toml")
    plan.write_bytes(b"\xef\xbb\xbf" + plan.read_bytes().replace(b"\n", b"\r\n"))  # an editor on Windows
    assert main(["start", str(folder), "--output", "out", "--plan_only"]) == 0
    assert "is written" not in capsys.readouterr().out.partition("is written")[2]
