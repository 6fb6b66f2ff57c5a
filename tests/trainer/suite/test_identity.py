"""An output folder belongs to tasks, files and encoders; what differs in one of them is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from schemas.errors import UsageError
from tests.trainer.suite.conftest import subject_lines, write_lines, write_task
from trainer.config.load import recipe_text
from trainer.finetune.fingerprint import fingerprint_of
from trainer.suite.checkpoints import encoders_of_run
from trainer.suite.cli import main
from trainer.suite.encoders import Encoder
from trainer.suite.identity import check_owner, claim, identity_of
from trainer.suite.plan import Plan
from trainer.suite.probe.tasks import open_probe
from trainer.suite.suite_file import open_suite


def encoder_folder(folder: Path) -> Encoder:
    """An encoder of which only the configuration is there; identities ask for no more."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    return Encoder("first", str(folder))


def test_an_edit_that_keeps_the_size_is_another_encoder(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path).folder
    before = fingerprint_of(folder)
    assert fingerprint_of(folder) == before
    (tmp_path / "config.json").write_text("[]")
    os.utime(tmp_path / "config.json", ns=(1, 1))
    assert fingerprint_of(folder) != before


def test_another_probe_is_refused(tmp_path: Path) -> None:
    """Other values, and other files under the same names."""
    write_task(tmp_path, "task", "sentence", subject_lines)
    encoder = encoder_folder(tmp_path / "encoder")
    output = tmp_path / "out"
    output.mkdir()

    def claim_with(*changes: str) -> None:
        probe = open_probe(str(tmp_path / "task.toml"), str(tmp_path), changes)
        claim(output, identity_of(Plan(None, [encoder], "", output, 1, probe)))

    claim_with()
    claim_with()
    with pytest.raises(UsageError, match="holds results of another probe"):
        claim_with("training.max_length=16")

    write_lines(tmp_path / "task/train.jsonl", subject_lines(40, 3))
    with pytest.raises(UsageError, match="holds results of another probe"):
        claim_with()


def swap(path: Path, one: str, other: str) -> None:
    """Swap two words of a file, which keeps its size."""
    text = path.read_text()
    assert one in text and other in text
    path.write_text(text.replace(one, "\0").replace(other, one).replace("\0", other))


def test_a_file_of_the_same_size_with_other_content_is_refused(suite_file: Path, tmp_path: Path) -> None:
    encoder = encoder_folder(tmp_path / "encoder")
    output = tmp_path / "out"
    output.mkdir()
    plan = Plan(open_suite(str(suite_file), [], []), [encoder], str(suite_file.parent), output, 1)
    claim(output, identity_of(plan))

    labels = suite_file.parent / "tags/dev.jsonl"
    size = labels.stat().st_size
    swap(labels, "B-WHO", "B-WHAT")
    assert labels.stat().st_size == size
    with pytest.raises(UsageError, match="holds results of another task tags"):
        claim(output, identity_of(plan))
    swap(labels, "B-WHO", "B-WHAT")
    claim(output, identity_of(plan))

    swap(suite_file.parent / "pairs/order.jsonl", "sentence_good", "sentence_bad")
    with pytest.raises(UsageError, match="holds results of another minimal pairs order"):
        claim(output, identity_of(plan))


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    """Of another run with the same steps, and of the same run after it was trained again."""
    output = tmp_path / "out"
    output.mkdir()

    def write_checkpoint(run: Path, content: str) -> None:
        folder = run / "checkpoints/step-00000010"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(content)
        (run / "recipe.toml").write_text(recipe_text("bert_base"))

    def claim_run(run: Path) -> None:
        claim(output, identity_of(Plan(None, encoders_of_run(str(run), [10], output), "", output, 1)))

    write_checkpoint(tmp_path / "first", '{"files": 1}')
    write_checkpoint(tmp_path / "second", '{"files": 2}')
    claim_run(tmp_path / "first")
    claim_run(tmp_path / "first")
    with pytest.raises(UsageError, match="holds results of another encoder step-10"):
        claim_run(tmp_path / "second")

    write_checkpoint(tmp_path / "first", '{"files": 2}')
    with pytest.raises(UsageError, match="holds results of another encoder step-10"):
        claim_run(tmp_path / "first")


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("files", "first"),
    [
        (["identity.json", "lock", "report.html", "results.json", "task.toml"], "identity.json"),
        (["notes.txt"], "notes.txt"),
        (["checkpoints/step-00000010/manifest.json", "recipe.toml"], "checkpoints"),
        (["folders/first/tags/results.json"], "folders"),
    ],
    ids=["fine-tuning", "foreign", "run", "suite without its suite.json"],
)
def test_a_folder_of_something_else_stays_as_it_is(
    files: list[str],
    first: str,
    masked_lm: Callable[[int], Path],
    suite_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    for name in files:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("{}")

    before = contents(output)
    words = [str(masked_lm(0)), "--suite", str(suite_file), "--output", str(output)]
    capsys.readouterr()
    assert main(words) == 2
    assert contents(output) == before
    assert capsys.readouterr().err == (
        f"clozeline: --output {output} holds files that do not belong to a suite, such as {first}: it has no valid "
        "suite.json. Choose another folder.\n"
    )


def test_an_interrupted_suite_owns_its_folder(tmp_path: Path) -> None:
    """Also one that was killed before it wrote suite.json."""
    output = tmp_path / "out"
    check_owner(output)
    output.mkdir()
    for name in ("lock", "lock.owner", ".suite.json.part"):
        (output / name).write_text("")
    check_owner(output)

    encoder = encoder_folder(tmp_path / "encoder")
    claim(output, identity_of(Plan(None, [encoder], "", output, 1)))
    for name in ("logs", "folders", "checkpoints"):
        (output / name).mkdir()
    (output / "notes.txt").write_text("Mine.")
    check_owner(output)
    claim(output, identity_of(Plan(None, [encoder], "", output, 1)))
