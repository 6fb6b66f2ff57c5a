import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.beam import display


def test_help_answers_at_once_and_without_beam(run) -> None:
    done = run("python", "-X", "importtime", "-m", "pipeline", "--help")
    assert done.returncode == 0 and "shard" in done.stdout
    assert "apache_beam" not in done.stderr and "torch" not in done.stderr


def test_inspect_shows_text_vocabulary_and_pairs(command, text, vocab, pairs) -> None:
    shown = {folder.name: command("inspect", folder, "--rows", 2).stdout for folder in (text, vocab, pairs)}
    assert "documents" in shown["text"] and shown["text"].count(" sentences\n") == 2
    assert "distinct_words" in shown["vocab"]
    assert shown["pairs"].count("\n  A  [CLS]") == 2 and shown["pairs"].count("\n  B ") == 2
    counts = command("inspect", vocab / "word_counts.arrow", "--rows", 1).stdout
    assert "the" in counts


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("shard --input a --outptu X", "required: --output. Unknown flag --outptu. Did you mean --output?"),
        ("shard --inptu=a --output X", "Unknown flag --inptu. Did you mean --input?"),
        ("shard --output X", "Give --input, with files or folders, or --inputs, with a TOML file of several corpora."),
        ("vocab --txt a --output X --model wordpiece --size 9", "Unknown flag --txt. Did you mean --text?"),
        ("shard --input a", "required: --output. See"),
        ("shard --input a --runner=X --seed 4", "required: --output. See"),
        ("shard --input pyproject.toml --output X --num_workers 2", "Use --direct_num_workers N"),
        ("shard --input pyproject.toml --output X --workers 2", "Did you mean --direct_num_workers?"),
        ("shard --input pyproject.toml --output X --num_workers=2", "Use --direct_num_workers N"),
        ("inspect a --row 3", "Unknown flag --row. Did you mean --rows?"),
    ],
)
def test_flags_that_are_missing_misspelled_or_without_effect(command, arguments: str, told: str) -> None:
    done = command(*arguments.split())
    assert done.returncode == 2 and told in done.stderr, done.stderr
    assert ".." not in done.stderr and "??" not in done.stderr and "?." not in done.stderr


def test_a_broken_pipe_inside_a_job_is_not_success(command, corpus, tmp_path, monkeypatch) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("pipeline.jobs.shard.list_corpora", broken)
    with pytest.raises(BrokenPipeError):
        command("shard", "--input", corpus, "--output", tmp_path / "out")


def test_imports_leave_every_logger_as_it_was(run) -> None:
    jobs = "pipeline.cli, pipeline.jobs.shard, pipeline.jobs.vocab, pipeline.jobs.pairs, pipeline.beam.local"
    script = (
        "import logging\nlogging.getLogger().setLevel(logging.INFO)\n"
        f"import {jobs}\n"
        "root = logging.getLogger()\n"
        "print(root.level, root.manager.disable, logging.getLogger('apache_beam').level)\n"
    )
    done = run("python", "-c", script)
    assert done.stdout == "20 0 0\n", done.stderr


@contextlib.contextmanager
def new_process() -> Iterator[None]:
    """Logging as it is in a new process; pytest adds its handlers for each test."""
    root = logging.getLogger()
    kept = root.handlers
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = kept


def levels() -> list[int]:
    """The levels of the root logger, of Beam's and of its runners'."""
    loggers = [logging.getLogger(name) for name in ("", "apache_beam", "apache_beam.runners")]
    return [logging.root.manager.disable, *(logger.level for logger in loggers)]


BEAM_LOG = {
    "local": ([], False, False),
    "local, named": (["--runner=DirectRunner"], False, False),
    "local, verbose": ([], True, True),
    "Dataflow": (["--project", "p", "--runner", "DataflowRunner"], False, True),
    "Flink": (["--runner=flink"], False, False),
    "Flink, verbose": (["--runner=flink"], True, True),
}


@pytest.mark.parametrize(("flags", "verbose", "visible"), BEAM_LOG.values(), ids=BEAM_LOG)
def test_beams_log_is_shown_when_a_job_runs_elsewhere_or_on_request(
    capsys, flags: list[str], verbose: bool, visible: bool
) -> None:
    root = logging.getLogger()
    before = levels()

    with new_process():
        with display.job_logs(flags, verbose):
            logging.getLogger("apache_beam.runners.internal").info("Created job with id: [7]")
            logging.getLogger("apache_beam.runners").error("failed")
        assert root.handlers == []
    assert ("Created job with id: [7]" in capsys.readouterr().err) == visible
    assert levels() == before


def test_a_log_that_the_user_has_set_up_is_left_alone() -> None:
    root = logging.getLogger()
    before = levels()
    mine = logging.NullHandler()

    with new_process():
        root.addHandler(mine)
        with display.job_logs(["--runner=DataflowRunner"], verbose=True):
            assert root.handlers == [mine]
            assert levels() == before


def test_the_log_is_put_back_after_an_error() -> None:
    before = levels()
    with new_process():
        with pytest.raises(KeyboardInterrupt), display.job_logs(["--runner=DataflowRunner"]):
            raise KeyboardInterrupt
        assert logging.getLogger().handlers == []
    assert levels() == before


def test_verbose_shows_the_log_of_a_local_job(run, corpus, tmp_path: Path) -> None:
    shard = ("python", "-m", "pipeline", "shard", "--input", corpus)
    done = run(*shard, "--output", tmp_path / "text", "--verbose")
    assert done.returncode == 0, done.stderr
    assert "INFO apache_beam." in done.stderr


def test_what_is_printed_of_a_corpus_cannot_steer_the_terminal(command, tmp_path: Path) -> None:
    """Names of sources and text may hold escape sequences, and characters that reorder what comes after them."""
    persian = "\u0631\u0648\u062f\u200c\u062e\u0627\u0646\u0647"  # with a joiner, which it needs
    text = f"One river here. \u202eTwo rivers \x9b31mthere. {persian}."
    lines = [json.dumps({"text": f"{i} {text}", "source": "\x1b[2Jsource"}) + "\n" for i in range(20)]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(lines))
    assert command("shard", "--input", corpus, "--output", tmp_path / "text", "--num_shards", 1).returncode == 0

    shown = command("inspect", tmp_path / "text").stdout

    assert not set(shown) & {"\x1b", "\x9b", "\u202e"}
    assert "\\x1b[2Jsource" in shown
    assert persian in shown
