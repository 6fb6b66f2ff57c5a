"""An output folder belongs to tasks, files and encoders; what differs in one of them is refused."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import UsageError
from tests.trainer.suite.conftest import subject_lines, write_lines, write_task
from trainer.finetune.inputs import check_inputs, record_inputs
from trainer.finetune.task_file import dump_task, read_task
from trainer.suite.checkpoints import exported
from trainer.suite.cli import main
from trainer.suite.encoders import Encoder
from trainer.suite.plan import PROBE, Plan, remove_if_of_another
from trainer.suite.run import inputs_of, with_results
from trainer.suite.suite_file import NO_SUITE, SuiteTask, TaskEntry, open_suite


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """A plan without tasks, for an encoder of which only the configuration is there, as inputs need no more."""
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder/config.json").write_text("{}")
    (tmp_path / "out").mkdir()
    return Plan(NO_SUITE, [Encoder("first", str(tmp_path / "encoder"))], tmp_path / "out", 1)


def claim_with(plan: Plan, finished: bool = True) -> None:
    """As a suite does before its jobs. finished: whether all of them then write results."""
    check_inputs(plan.output, with_results(plan, inputs_of(plan)), "Choose another folder.")
    record_inputs(plan.output, inputs_of(plan))
    if finished:
        parts = plan.suite.names or [PROBE]
        for encoder, part in itertools.product(plan.encoders, parts):
            plan.place(encoder, part).mkdir(parents=True, exist_ok=True)
            (plan.place(encoder, part) / "results.json").write_text("{}")


def test_what_has_no_result_may_be_mended(suite_file: Path, plan: Plan) -> None:
    """A job that failed because of its files, or of the weights."""
    plan = replace(plan, suite=open_suite(str(suite_file), [], []))
    claim_with(plan, finished=False)
    swap(suite_file.parent / "tags/dev.jsonl", "B-WHO", "B-WHAT")
    Path(plan.encoders[0].folder, "config.json").write_text("[]")
    claim_with(plan)
    swap(suite_file.parent / "tags/dev.jsonl", "B-WHO", "B-WHAT")
    with pytest.raises(UsageError, match=r"task tags\.files\.tags/dev\.jsonl"):
        claim_with(plan)


def test_another_encoder_of_the_same_size_is_refused(plan: Plan, tmp_path: Path) -> None:
    claim_with(plan)
    (tmp_path / "encoder/config.json").write_text("[]")
    with pytest.raises(UsageError, match=r"holds results with encoder first\.weights"):
        claim_with(plan)


def test_another_probe_is_refused(plan: Plan, tmp_path: Path) -> None:
    """Other values, and other files under the same names."""
    write_task(tmp_path, "task", "sentence", subject_lines)

    def claim_probe(*changes: str) -> None:
        task = read_task(str(tmp_path / "task.toml"), list(changes))
        claim_with(replace(plan, probe=SuiteTask(TaskEntry(), task, str(tmp_path))))

    claim_probe()
    claim_probe()
    with pytest.raises(UsageError, match=r"holds results with probe\.training\.max_length = 32 instead of 16"):
        claim_probe("training.max_length=16")

    write_lines(tmp_path / "task/train.jsonl", subject_lines(40, 3))
    with pytest.raises(UsageError, match=r"probe\.files\.task/train\.jsonl = .* Choose another folder"):
        claim_probe()


def swap(path: Path, one: str, other: str) -> None:
    """Swap two words of a file, which keeps its size."""
    text = path.read_text()
    assert one in text and other in text
    path.write_text(text.replace(one, "\0").replace(other, one).replace("\0", other))


def test_a_file_of_the_same_size_with_other_content_is_refused(suite_file: Path, plan: Plan) -> None:
    plan = replace(plan, suite=open_suite(str(suite_file), [], []))
    claim_with(plan)

    labels = suite_file.parent / "tags/dev.jsonl"
    size = labels.stat().st_size
    swap(labels, "B-WHO", "B-WHAT")
    assert labels.stat().st_size == size
    with pytest.raises(UsageError, match=r"task tags\.files\.tags/dev\.jsonl"):
        claim_with(plan)
    swap(labels, "B-WHO", "B-WHAT")
    claim_with(plan)
    claim_with(replace(plan, suite=open_suite(str(suite_file), [], ["training.save_every=7"])))  # no input

    swap(suite_file.parent / "pairs/order.jsonl", "sentence_good", "sentence_bad")
    with pytest.raises(UsageError, match=r"minimal pairs order\.files\.pairs/order\.jsonl"):
        claim_with(plan)


def test_a_checkpoint_of_another_run_is_refused(plan: Plan, tmp_path: Path) -> None:
    """Of another run with the same steps, and of the same run after it was trained again."""

    def write_checkpoint(run: str, content: str) -> None:
        folder = tmp_path / run / "checkpoints/step-00000010"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(content)

    def claim_run(run: str) -> None:
        encoders = exported(str(tmp_path / run), [10], plan.output)[0]
        claim_with(replace(plan, encoders=encoders, run=str(tmp_path / run)), finished=False)

    write_checkpoint("first", '{"files": 1}')
    write_checkpoint("second", '{"files": 2}')
    claim_run("first")
    with pytest.raises(UsageError, match=r"encoder step-10\.weights"):
        claim_run("second")

    write_checkpoint("first", '{"files": 2}')
    with pytest.raises(UsageError, match=r"encoder step-10\.weights"):
        claim_run("first")


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_of_something_else_stays_as_it_is(
    masked_lm: Callable[[int], Path],
    suite_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "out"
    for name in ["notes.txt", "folders/first/tags/results.json", "results.json"]:
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_text("{}")

    before = contents(output)
    words = [str(masked_lm(0)), "--suite", str(suite_file), "--output", str(output)]
    capsys.readouterr()
    assert main(words) == 2
    assert contents(output) == before
    assert capsys.readouterr().err == (
        f"clozeline: --output {output} holds files that belong to something else, such as folders: it has no "
        "inputs.json. Choose another folder.\n"
    )


def test_a_suite_and_a_fine_tuning_do_not_take_each_others_folder(plan: Plan) -> None:
    fine_tuning = {"encoder": "0123456789abcdef", "task": {"name": "rte"}}
    record_inputs(plan.output, fine_tuning)
    with pytest.raises(UsageError, match='encoder = "0123456789abcdef" instead of "those of a suite"'):
        claim_with(plan)


def test_an_interrupted_suite_owns_its_folder(plan: Plan) -> None:
    """Also one that was killed before it wrote inputs.json."""
    for name in ("lock", "lock.owner", ".inputs.json.part"):
        (plan.output / name).write_text("")
    claim_with(plan)
    (plan.output / "notes.txt").write_text("Mine.")
    claim_with(plan)


def test_what_a_failed_job_left_is_removed_if_its_task_has_changed(suite_file: Path, tmp_path: Path) -> None:
    task = read_task(str(suite_file.parent / "tags.toml"), ["training.lr=0.1"])
    output = tmp_path / "out"
    record_inputs(output, {"task": tomllib.loads(dump_task(task))})
    remove_if_of_another(output, None, task)
    assert output.exists()
    lower = read_task(str(suite_file.parent / "tags.toml"), ["training.lr=0.01"])
    (output / "results.json").write_text("{}")
    remove_if_of_another(output, None, lower)
    assert output.exists()
    (output / "results.json").unlink()
    remove_if_of_another(output, None, lower)
    assert not output.exists()
