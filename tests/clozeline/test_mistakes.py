"""What newcomers type by mistake: each gets one line with what to type instead, at once, and no traceback."""

from __future__ import annotations

import gzip
import os
import re
import signal
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from clozeline.cli import COMMANDS, PIPELINE, explain_usage

MISTAKES = {
    # the command
    "trian": (2, "there is no command trian. Did you mean train?"),
    "\x1b[2J": (2, r"there is no command \x1b[2J."),
    "recipes \x1b[2J": (2, r"\x1b[2J"),
    "--verion": (2, "Unknown flag --verion. Did you mean --version?"),
    "version": (2, "there is no command version. Did you mean --version?"),
    "completion tcsh": (2, "invalid choice: 'tcsh' (choose from bash, zsh, fish)"),
    # start
    "start https://huggingface.co/datasets/a/b/tree/main/c": (2, "files are at hf://datasets/a/b/c"),
    "start nope": (2, "nope matches no file. Check the path"),
    "start {books}/a.png --output {out}": (2, "a.png holds no text that can be read: 1 x an image"),
    "start {books} --output {out}": (3, "is too little to train on: * The files that cannot be read are named above."),
    "start {books} --hours ten": (2, "'ten' is not a number of hours above 0, such as 0.5"),
    "start {books} --output {books}/out": (2, "is in the folder {books}, whose files are all read"),
    "start {books}/a.txt {books}/b.txt": (2, "start takes one FOLDER, and 2 were given. * quote a pattern"),
    "start {books} --text_layout file": (2, "Set text_layout under [shard] in clozeline.toml, which --plan_only"),
    "start {books} --set run.seed=7": (2, "Keys of the recipe stand under [train] in clozeline.toml"),
    "--output {out} start {books}": (2, "--output stands before the command. Write clozeline start ... --output ..."),
    "train --config tiny --data.pairs {pairs}": (2, "Did you mean --set data.pairs=VALUE?"),
    "train --config cpu_hour --set run.max_steps=100 --set data.pairs={pairs}": (
        2,
        "schedule.warmup_steps 500 is above run.max_steps 100. Lower it, for instance to schedule.warmup_steps=10.",
    ),
    "start {books} --recipe bert_base": (2, "Set config under [train] in clozeline.toml"),
    "start {books} --lr 1e-3": (2, "Set optimizer.lr under [train] in clozeline.toml"),
    "start {books} --epochs 3": (2, "Set run.max_epochs under [train] in clozeline.toml"),
    "shard {books} --output {out}": (2, "unexpected arguments: {books}. Did you mean --input {books}?"),
    # text
    "shard --input nope/*.txt --output {out}": (2, "--input nope/*.txt matches no file"),
    "shard --input {books} --text-key body --output {out}": (2, "Unknown flag --text-key. Did you mean --text_key?"),
    "shard --input {books} --output {out} --resume": (2, "It is not needed: the same command continues what it began."),
    "shard --input {books} --output {out} --format txt": (2, "choose from auto, text, * Did you mean text?"),
    "shard --input {books} --output {out} --filters gofer": (2, "'gofer' is not a set of rules. Did you mean gopher?"),
    "shard --input {books} --output {out} --language inglish": (2, "Did you mean english?"),
    "shard --input {books} --output {out} --encoding utf_9": (2, "Did you mean utf_8?"),
    "shard --input {books} --output {books}": (2, "whose files are all read. Give --output another folder."),
    # vocabulary and pairs
    "vocab --text {text} --output {out} --model bpe --size 99": (2, "invalid choice: 'bpe' * Did you mean bytebpe?"),
    "vocab --text {text} --output {out} --size 99": (2, "--model is one of wordpiece, bytebpe and unigram."),
    "vocab --text {text} --output {out} --model wordpiece --size 8k": (2, "'8k' is not a whole number above 0"),
    "vocab --text {pairs} --output {out} --model wordpiece --size 99": (3, "holds pairs, but text was expected"),
    "pairs --text {text} --vocab {text} --output {out} --objective nsp": (3, "{text} holds no vocabulary"),
    "vocab --text {text} --output {out} --model wordpiece --vocab_size 99": (2, "Did you mean --size?"),
    "pairs --text {text} --vocab {vocab} --output {out}": (
        2,
        "required: --objective. --objective is one of nsp, sop, ",
    ),
    "pairs --text {text} --vocab {vocab} --output {out} --objective nsp --runer X": (2, "Did you mean --runner?"),
    "statistics --pairs {pairs} {text} --output {out}": (2, "unexpected arguments: {text}"),
    # training
    "inspect /dev/null": (3, "/dev/null is neither a file nor a folder, but a device or a pipe."),
    "train --config tinny": (2, "--config tinny does not exist. Did you mean tiny?"),
    "train tiny": (2, "required: --config. Did you mean --config tiny?"),
    "train --config tiny --set data.pairs={text} --set run.output={out}": (3, "holds text, but pairs was expected"),
    "train --config tiny --set data.pairs={pairs} --set evaluation.pairs={text} --set run.output={out}": (
        3,
        "holds text, but pairs was expected",
    ),
    "train --config bert_base --set data.pairs={pairs} --set run.output={out}": (
        3,
        "{pairs} has a vocabulary of * tokens, but model.vocab_size is 30522. Use --set model.vocab_size=",
    ),
    "train --config tiny --set optimiser.lr=1": (2, "unknown key optimiser. Did you mean optimizer?"),
    "train --config tiny --set optimizer.learning_rate=1": (2, "[optimizer] has kind, lr, betas"),
    "train --config tiny --set data.pairs {pairs}": (2, "without spaces, as in --set data.pairs={pairs}."),
    "train --config tiny data.pairs={pairs}": (
        2,
        "unexpected arguments: data.pairs={pairs}. Did you mean --set data.p",
    ),
    "train {pairs} --config tiny": (2, "unexpected arguments: {pairs}. Did you mean --set data.pairs={pairs}?"),
    "train --config tiny --learning_rate 1e-3": (2, "set with --set: --set optimizer.lr=VALUE."),
    "train --config tiny --gpus 4": (2, "A launcher starts a process for each GPU: deepspeed --num_gpus N"),
    "train --config tiny --resume": (2, "It is not needed: the same command continues what it began."),
    "train --config tiny --config bert_base": (2, "--config is given twice, as tiny and as bert_base. Give it once."),
    # the encoder
    "export nope --output {out}": (2, "nope does not exist. Check the path, the run.output of a training."),
    "export {books} --output {out}": (2, "{books} holds no checkpoint. Give the run.output of a recipe"),
    "export {pairs} --output {out}": (2, "{pairs} is pair shards and holds no checkpoint. Give the run.output of a"),
    "export run": (2, "the following arguments are required: --output. See `clozeline export --help`."),
    "export run out/hf": (2, "required: --output. Did you mean --output out/hf?"),
    "export --input run --output {out}": (2, "Unknown flag --input. RUN_DIR stands without a flag."),
    "finetune bert-base --task glue/rte --output {out}": (2, "Run `hf download bert-base --local-dir"),
    "finetune task.toml --task {books} --output {out}": (2, "Swap them: `clozeline finetune {books} --task "),
    "suite {books} --suite gleu --output {out}": (2, "--suite gleu does not exist. Did you mean glue?"),
    # look and check
    "train --config tiny --set data.pairs={books} --set run.output={out}": (
        3,
        "If these are texts, `clozeline start {books}` goes all the way, or `shard`, `vocab` and `pairs`.",
    ),
    "recipes bert": (2, "There is no recipe bert. Did you mean bert_base?"),
    "recipes bert-bas": (2, "There is no recipe bert-bas. Did you mean bert_base?"),
    "doctor --confg tiny": (2, "Unknown flag --confg. Did you mean --config?"),
    "inspect nope": (3, "nope does not exist. Give a folder or a file"),
    "verify {books}": (3, "is not a finished folder: it holds no manifest.json"),
}
"""For each command line the exit code, and a part of the line on stderr, in which * stands for any text."""


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    (folder / "a.txt").write_text("The river is long. The house is small.\n")
    (folder / "b.txt").write_text("It was a good day in May.\n")
    (folder / "cut.txt.gz").write_bytes(gzip.compress(b"The river is long.\n\n" * 9999)[:-9])
    (folder / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99))
    return folder


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Commands of the trainer end with their signals ignored."""
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


def code_of(words: list[str]) -> int:
    """Run a command as `clozeline` does, in this process."""
    if words[0] not in COMMANDS:
        return explain_usage(words)
    program = COMMANDS[words[0]].program
    main = import_module(program.partition(":")[0]).main
    return main(words, prog="clozeline") if program == PIPELINE else main(words[1:], prog=f"clozeline {words[0]}")


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line_at_once(
    typed: str, books: Path, text: Path, vocab: Path, pairs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = MISTAKES[typed]
    places = {"books": books, "text": text, "vocab": vocab, "pairs": pairs, "out": tmp_path / "out"}
    started = time.process_time()
    assert code_of(typed.format(**places).split()) == code
    assert time.process_time() - started < 5

    said = capsys.readouterr().err
    assert said.startswith("clozeline: ") and said.count("\n") == 1, said
    assert re.search(re.escape(told.format(**places)).replace(r"\*", ".*"), said), said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "typed",
    [
        "train --config tiny --set data.pairs=/pairs --set run.output={bad}/run",
        "train --config tiny --set data.pairs=/pairs --set run.output=run",
        "export {bad}/run --output /hf",
        "export /run --output hf",
        "report {bad}/run",
        "report /run --output page.html",
        "finetune {bad}/hf --task /t.toml --output /out",
        "finetune /hf --task /t.toml --output out",
        "suite /hf a={bad}/hf --suite glue --output /out",
        "suite {bad}/run --checkpoints all --suite glue --output /out",
        "suite /hf --suite glue --output out",
        "start /texts --output out --plan_only",
    ],
)
def test_a_path_that_is_not_utf_8_is_refused_at_once(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is given, or the folder in which the command starts."""
    bad = tmp_path / os.fsdecode(b"par\xe4")
    bad.mkdir()
    if "{bad}" not in typed:
        monkeypatch.chdir(bad)
    assert code_of(typed.format(bad=bad).split()) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path}/par\\xe4" in said and "is not UTF-8. Rename it" in said and said.count("\n") == 1, said
    assert not list(bad.iterdir())
