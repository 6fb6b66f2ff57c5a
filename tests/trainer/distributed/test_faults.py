"""What a user sees when losses, weights, ranks or disks go wrong, and that nothing good is lost by it."""

import fcntl
import json
import resource
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.forked import Command
from tests.trainer.conftest import logged
from tests.trainer.ranks import environments

PASSES = 4  # micro-batches of a step on one rank


def steps(first: int, last: int) -> str:
    """Of one rank, as forward passes."""
    return f"{PASSES * (first - 1) + 1}:{PASSES * last}"


def state(out: Path, step: int) -> dict:
    return json.loads((out / f"checkpoints/step-{step:08d}/state.json").read_text())


def test_a_bad_step_makes_no_update(training, tmp_path) -> None:
    faults = f"nan:0:{steps(6, 6)},spike:0:{steps(9, 9)}"
    done = training.trained(1, tmp_path, faults, anomaly__window=5)
    assert "Step 6 made no update: the loss is not finite." in done.stdout
    assert "Step 9 made no update: the gradient norm " in done.stdout
    assert "the limit after 5 steps with a median of " in done.stdout
    assert [line["step"] for line in logged(tmp_path) if line["loss"] is None] == [6]
    assert state(tmp_path, 12)["updates"] == 10 and state(tmp_path, 12)["anomaly"]["skipped"] == 2


def test_a_checkpoint_is_due_at_a_good_step_after_a_bad_one_and_not_at_a_bad_one(training, tmp_path) -> None:
    """Whether a step made its update is known only after the next one has begun; every 4th step is due."""
    training.trained(1, tmp_path, f"nan:0:{steps(3, 3)},nan:0:{steps(8, 8)}", anomaly__window=5, checkpoint__keep=9)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004", "step-00000012"]
    assert state(tmp_path, 4)["updates"] == 3


def test_a_checkpoint_before_a_stop_has_no_evaluation_of_an_older_step(training, held_out, tmp_path) -> None:
    """Step 6 is evaluated, by one batch. A stop in step 8 saves step 7."""
    evaluation = PASSES
    asked_at = 7 * PASSES + evaluation + 2
    changes = {"checkpoint__every": 12, "evaluation__every": 6, "evaluation__batches": 1}
    done = training.warm(1, tmp_path, f"ask:0:{asked_at}:{asked_at}", evaluation__pairs=held_out, **changes)
    assert done.returncode == 75, done.stderr
    (saved,) = (tmp_path / "checkpoints").iterdir()
    assert saved.name == "step-00000007" and not (saved / "evaluation.json").exists()


def test_many_in_a_row_send_the_run_back_and_other_data_is_taken(training, tmp_path) -> None:
    """Steps 6 to 8 are bad: from the checkpoint of step 4 on the data of 5 to 8 are left out, resumed or not."""
    out = tmp_path / "run"
    done = training.trained(1, out, f"nan:0:{steps(6, 8)}", anomaly__max_skips=3, checkpoint__keep=9)
    assert "3 steps in a row up to step 8 made no update. Going back to step 4; 4 steps of data are left" in done.stdout
    assert state(out, 4)["skipped_batches"] == 0 and state(out, 8)["skipped_batches"] == 4
    found = training.losses(out)
    assert list(found) == list(range(1, 13))
    for name in ("step-00000012", "step-00000008/manifest.json"):
        path = out / "checkpoints" / name
        path.rename(tmp_path / path.name)
    (tmp_path / "manifest.json").rename(out / "checkpoints/step-00000008/manifest.json")
    training.trained(1, out, anomaly__max_skips=3)
    assert training.losses(out) == found


def test_when_going_back_does_not_help_the_run_stops(training, tmp_path) -> None:
    done = training.warm(1, tmp_path, "nan:0:21:9999", anomaly__max_skips=2, anomaly__max_rollbacks=2)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.count("Going back to step 4") == 2
    assert "going back to step 4 2 times did not help" in done.stderr
    assert training.losses(tmp_path).keys() >= {1, 2, 3, 4}


def two_ranks(training, fault: str, out: Path, **changes: object) -> tuple[int, str]:
    """Exit code and output of rank 0, beside a rank 1 with a fault; with no launcher to end them both."""
    command = ["python", "-m", "tests.trainer.faulty_rank", fault, "trainer", *training.flags(out, **changes)]
    ranks = [
        Command(command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for environment in environments(2)
    ]
    other = threading.Thread(target=ranks[1].communicate)
    other.start()
    told, _ = ranks[0].communicate()
    ranks[1].kill()
    other.join()
    return ranks[0].returncode, told


@pytest.mark.parametrize("fault", ["die", pytest.param("stop", marks=pytest.mark.thorough)])
def test_a_lost_rank_is_named_with_its_place(training, tmp_path, fault: str) -> None:
    code, told = two_ranks(
        training, f"{fault}:1:13:13", tmp_path, engine__timeout_seconds=15, checkpoint__background="false"
    )
    print(f"{fault}: ended {time.time() - (tmp_path / 'metrics.jsonl').stat().st_mtime:.0f} s after its last step")
    assert code == 1, told
    last = told.splitlines()[-1]
    assert last.startswith("clozeline: ") and "rank 1 (process " in last and "last seen in " in last
    assert "resumes from the last checkpoint" in last and "Traceback" not in told
    done = training.warm(1, tmp_path, run__stop_at=5)
    assert done.returncode == 0 and "step 4, row 64" in done.stdout


def test_ranks_that_cannot_meet_name_the_variable_to_set(training, tmp_path) -> None:
    code, told = two_ranks(training, "unreachable:0:1:1,unreachable:1:1:1", tmp_path / "run")
    assert code == 2 and "Traceback" not in told, told
    assert told.count("clozeline:") == 1 and "GLOO_SOCKET_IFNAME=eth0" in told
    assert "rank 0 on" in told and "none0" in told


def test_a_folder_in_use_is_refused(training, tmp_path) -> None:
    with (tmp_path / "lock").open("w") as file:
        file.write("process 1 on somewhere\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        done = training.warm(1, tmp_path)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"{tmp_path} is in use by a live run (process 1 on somewhere)" in done.stderr
    training.trained(1, tmp_path, run__stop_at=1)


def test_a_file_system_without_room(training, tmp_path) -> None:
    """No file may grow beyond some bytes, as on a full disk: saves fail, the run goes on, only its end cannot."""
    changes = {"run__max_steps": 200, "checkpoint__every": 100, "run__log_every": 50, "batch__micro_batch": 16}
    process = training.start("python", tmp_path, **changes)
    while process.poll() is None and not (tmp_path / "metrics.jsonl").exists():
        time.sleep(0.005)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (60_000, 60_000))
    told, _ = process.communicate()
    assert process.returncode == 5 and "Traceback" not in told
    assert "Step 100 was not saved, and training continues: " in told and "File too large" in told
    assert "Step 200 could not be saved" in told
    assert not list((tmp_path / "checkpoints").iterdir())
    assert list(training.losses(tmp_path)) == [1, 50, 100, 150, 200]
