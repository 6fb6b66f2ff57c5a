"""Damaged metrics and run folders, and places that an export cannot go: one line, the right exit code, nothing lost.

Groups: G outputs that cannot be written, M files of a run folder, O exports against their run, Q a NaN at the end.
"""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.conftest import training  # noqa: F401 (a fixture)
from tests.trainer.data.node_cache.test_node_cache import mounted
from trainer.export import cli as export
from trainer.export.model_card import last_metrics
from trainer.metrics.log import NAMES, MetricsLog, read_lines
from trainer.metrics.presentation import keep_running
from trainer.metrics.run_page import write_report

SHORT = {"run__max_steps": 4, "checkpoint__every": 2, "run__log_every": 1, "schedule__warmup_steps": 1}
BAD_LINES = {
    "M-bytes": b"\xff\xfe\x80garbage\n",
    "M-a-number": b"5\n",
    "M-null": b"null\n",
    "M-no-step": b"{}\n",
    "M-step-is-text": b'{"step":"6"}\n',
    "M-step-is-true": b'{"step":true,"loss":1.0}\n',
    "M-loss-is-text": b'{"step":1,"loss":"<script>","seconds":1}\n',
    "M-cause-is-a-number": b'{"step":1,"loss_doctor":1}\n',
    "M-a-list": b"[1, 2]\n",
    "M-nested-too-deep": b'{"a":' * 50_000 + b"\n",
}


@pytest.fixture(scope="module")
def half(training, tmp_path_factory) -> Path:  # noqa: F811
    """A run that stopped after step 2 of 4."""
    out = tmp_path_factory.mktemp("half") / "run"
    training.trained(1, out, run__stop_at=2, **SHORT)
    return out


@pytest.fixture
def run_copy(half: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(half, tmp_path / "run"))


def content(folder: Path) -> dict[str, str]:
    """Each file's hash."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def one_line(error: str) -> str:
    """The one line of ours, after whatever transformers shows of its progress while it loads a model."""
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith("clozeline: ") and error.count("clozeline: ") == 1 and "Traceback" not in error
    return line


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_lines_that_are_not_metrics_are_skipped_and_counted(run_copy: Path, capsys, line: bytes) -> None:
    """At the beginning and at the end, when the run is opened again, in the report and in the card."""
    path = run_copy / "metrics.jsonl"
    good, _ = read_lines(str(run_copy))
    path.write_bytes(line + path.read_bytes() + line)
    assert last_metrics(str(run_copy), 2).step == 2
    write_report(str(run_copy))
    MetricsLog(str(run_copy), 2, 4).close()
    note = f"{path}: skipped 2 lines without metrics."
    assert capsys.readouterr().out.count(note) == 2, "once by the card, once by the run"
    assert read_lines(str(run_copy)) == (good, 0)


def test_m_a_line_with_a_step_alone_is_shown_as_far_as_it_goes(run_copy: Path) -> None:
    (run_copy / "metrics.jsonl").write_text('{"step":1}\n')
    write_report(str(run_copy))
    assert "<dd>-</dd>" in (run_copy / "report.html").read_text()
    MetricsLog(str(run_copy), 2, 4).close()


def test_m_a_run_resumes_with_all_of_them(training, run_copy: Path) -> None:  # noqa: F811
    path = run_copy / "metrics.jsonl"
    path.write_bytes(b'{"step":1}\n' + path.read_bytes() + b"".join(BAD_LINES.values()))
    done = training.warm(1, run_copy, **SHORT)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "skipped 10 lines without metrics." in done.stdout
    assert [line["step"] for line in read_lines(str(run_copy))[0]] == [1, 1, 2, 3, 4]


def test_presentation_never_ends_a_run(run_copy: Path, capsys) -> None:
    """A folder takes the report's place while the run is going."""
    (run_copy / "report.html").unlink()
    (run_copy / "report.html").mkdir()

    with keep_running("report.html"):
        write_report(str(run_copy))

    assert "report.html could not be written (" in capsys.readouterr().out


def test_q_a_report_shows_a_nan_at_the_end_as_a_dash(run_copy: Path) -> None:
    line = dict.fromkeys(NAMES) | {"step": 3}
    with (run_copy / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    write_report(str(run_copy))
    assert "<dt>training loss</dt><dd>-</dd>" in (run_copy / "report.html").read_text()


def other_width(run: Path) -> None:
    path = run / "recipe.toml"
    path.write_text(path.read_text().replace("hidden_size = 32", "hidden_size = 64"))


def other_size(run: Path) -> None:
    path = run / "vocabulary" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["unheard"] = len(tokenizer["model"]["vocab"])
    path.write_text(json.dumps(tokenizer))


def two_words_exchanged(run: Path) -> None:
    path = run / "vocabulary" / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["the"], vocab["a"] = vocab["a"], vocab["the"]
    path.write_text(json.dumps(tokenizer))


def broken_config(run: Path) -> None:
    (run / "vocabulary" / "tokenizer_config.json").write_text("{broken")


def unknown_class(run: Path) -> None:
    path = run / "vocabulary" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": {"content": 5}}))


@pytest.mark.parametrize(
    ("damage", "code", "message"),
    [
        (other_width, 4, "model.hidden_size was 32, is 64"),
        (other_size, 4, "vocabulary was "),
        (two_words_exchanged, 4, "vocabulary was "),
        (broken_config, 3, "tokenizer_config.json is not the JSON of a tokenizer"),
        (unknown_class, 4, "transformers cannot load the exported tokenizer"),
    ],
    ids=["O-recipe", "O-vocabulary-size", "O-vocabulary-order", "O-tokenizer-config", "O-tokenizer-does-not-load"],
)
def test_an_export_is_checked_against_its_checkpoint(
    run_copy: Path, tmp_path: Path, capsys, damage: Callable[[Path], None], code: int, message: str
) -> None:
    damage(run_copy)
    assert export.main([str(run_copy), "--output", str(tmp_path / "hf")]) == code
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and message in error and error.count("\n") == 1
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [("", "holds other files than an export"), ("checkpoints/step-00000002", "lies among the run's checkpoints")],
    ids=["O-run-itself", "O-checkpoint"],
)
def test_an_export_never_replaces_files_of_a_run(run_copy: Path, capsys, place: str, message: str) -> None:
    before = content(run_copy)
    assert export.main([str(run_copy), "--output", f"{run_copy}/{place}", "--overwrite"]) == 2
    assert message in capsys.readouterr().err
    assert content(run_copy) == before


@pytest.mark.parametrize(
    ("output", "code", "message"),
    [
        ("", 2, "it is empty"),
        ("file", 2, "file is not a folder"),
        ("file/hf", 2, "file is not a folder"),
        ("/dev/null", 2, "/dev/null is not a folder"),
        ("link", 2, "link is a link to nothing. Remove it, or give another folder."),
        ("link/hf", 2, "link is a link to nothing. Remove it, or give another folder."),
        ("/proc/hf", 5, "Check the disk and your permissions there, or give another --output."),
    ],
    ids=[
        "I-empty",
        "G-an-existing-file",
        "G-under-a-file",
        "G-dev-null",
        "G-dead-link",
        "G-under-a-dead-link",
        "G-proc",
    ],
)
def test_outputs_that_cannot_be_written(
    half: Path, tmp_path: Path, capsys, monkeypatch, output: str, code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("kept")
    Path("link").symlink_to("nothing")
    assert export.main([str(half), "--output", output, "--overwrite"]) == code
    error = capsys.readouterr().err
    assert message in one_line(error)
    assert Path("file").read_text() == "kept"


@pytest.fixture(params=["ro", "size=16k"], ids=["G-read-only", "G-full"])
def small_disk(request, tmp_path: Path):
    """A file system that is read-only, or too small for an export."""
    with mounted(tmp_path / "disk", request.param):
        yield tmp_path / "disk"


def test_an_output_on_a_bad_disk(half: Path, small_disk: Path, capsys) -> None:
    code = export.main([str(half), "--output", str(small_disk / "hf")])
    error = capsys.readouterr().err
    assert code == 5 and str(small_disk) in one_line(error), error


def test_a_temporary_folder_on_a_bad_disk(half: Path, small_disk: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    """It is used for exports to URLs alone."""
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    assert export.main([str(half), "--output", "memory://bad_disk/hf"]) == 5
    error = capsys.readouterr().err
    assert error.startswith("clozeline: ") and "TMPDIR" in error and error.count("\n") == 1
    assert export.main([str(half), "--output", str(tmp_path / "hf")]) == 0
