"""The job scripts of deploy/slurm on a real cluster of two nodes: see slurm_cluster.py."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.cli import COMMANDS
from tests.conftest import Command
from tests.deploy.changes import adapted
from tests.deploy.slurm_cluster import Cluster, NotAvailableError, unpack_packages
from tests.trainer.conftest import SHRUNK, Training

ACTIVATE = "source /shared/clozeline/.venv/bin/activate"
OWN_ENVIRONMENT = f"source {sys.prefix}/bin/activate"
ROOT = Path(__file__).resolve().parents[2]
STEPS = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        root = unpack_packages(tmp_path_factory.mktemp("packages"))
    except NotAvailableError as reason:
        pytest.skip(str(reason))
    made = Cluster(root, tmp_path_factory.mktemp("cluster"))
    try:
        made.wait_for_nodes()
        yield made
    finally:
        made.close()


def train_script(folder: Path, pairs: Path) -> Path:
    """train.sbatch for nodes without GPUs, with a rank of one core on each, and a run in `folder`.

    Both nodes are this machine: with more cores, their threads would wait for each other for most of the time.
    """
    settings = SHRUNK | {"run.max_steps": STEPS, "checkpoint.every": 1000, "data.pairs": pairs, "run.output": "run"}
    flags = " ".join(f"--set {name}={value}" for name, value in settings.items())
    changes = {
        "#SBATCH --gpus-per-node=8": "",
        "#SBATCH --cpus-per-task=64": "#SBATCH --cpus-per-task=1",
        ACTIVATE: OWN_ENVIRONMENT,
        "recipe=(--config bert_base --set data.pairs=/shared/pairs --set run.output=/shared/run)": (
            f"recipe=(--config tiny {flags})"
        ),
    }
    folder.mkdir(parents=True, exist_ok=True)
    return adapted("slurm/train.sbatch", folder, changes)


def pipeline_script(folder: Path, corpora: list[Path]) -> Path:
    """pipeline.sbatch for two corpora, with one core per task."""
    inputs = " ".join(f"'{corpus}'" for corpus in corpora)
    changes = {
        "#SBATCH --cpus-per-task=32": "#SBATCH --cpus-per-task=1",
        ACTIVATE: OWN_ENVIRONMENT,
        "inputs=('/shared/raw/web/*.jsonl.zst' '/shared/raw/books/*.txt')": f"inputs=({inputs})",
        "results=/shared": f"results={folder}",
        "vocab=(--model wordpiece --size 30522)": "vocab=(--model wordpiece --size 160)",
        "pairs=(--objective nsp --max_length 128)": "pairs=(--objective nsp --max_length 32)",
    }
    return adapted("slurm/pipeline.sbatch", folder, changes)


def test_the_script_has_every_job_of_the_pipeline() -> None:
    script = (ROOT / "deploy/slurm/pipeline.sbatch").read_text()
    jobs = [command.name for command in COMMANDS if command.name not in ("inspect", "verify")]
    assert re.findall(r"^    (\w+)\) output=.* step=\(\1 ", script, re.MULTILINE) == jobs


# What sbatch accepts and refuses


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["train", "pipeline"])
def test_a_script_is_accepted_as_it_is(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """But for GPUs: Slurm counts those in a database, which this cluster does not have."""
    script = adapted(f"slurm/{name}.sbatch", tmp_path, {"#SBATCH --gpus-per-node=8": ""} if name == "train" else {})
    done = cluster.run("sbatch", "--test-only", script)
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr


@pytest.mark.thorough
def test_an_unknown_launcher_is_refused_before_anything_starts(cluster: Cluster, tmp_path: Path, pairs: Path) -> None:
    script = train_script(tmp_path, pairs)
    job = cluster.submit(script, LAUNCHER="mpirun", PYTHONPATH=str(ROOT))
    cluster.wait_until(lambda: cluster.job(job)["JobState"] == "FAILED", 60)
    assert cluster.job(job)["ExitCode"] == "2:0"
    output = (tmp_path / f"clozeline-train-{job}.out").read_text()
    assert output == "LAUNCHER=mpirun is neither torchrun nor deepspeed.\n"


# Jobs


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_a_job_that_is_signaled_is_requeued_and_ends_as_an_unbroken_one(
    cluster: Cluster, tmp_path: Path, pairs: Path
) -> None:
    """Two nodes with a rank each. The unbroken run has DeepSpeed's launcher, so that both are tried."""
    unbroken = train_script(tmp_path / "unbroken", pairs)
    job = cluster.submit(unbroken, LAUNCHER="deepspeed", PYTHONPATH=str(ROOT))
    cluster.wait_for(job, "COMPLETED")
    [log] = (unbroken.parent / f"logs/{job}/start-0/node-1").iterdir()
    assert log.name.endswith("_rank1.log")

    script = train_script(tmp_path / "requeued", pairs)
    metrics = script.parent / "run/metrics.jsonl"
    job = cluster.submit(script, PYTHONPATH=str(ROOT))
    cluster.wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 5, 600)
    assert cluster.run("scancel", "--signal=USR1", job).returncode == 0
    cluster.wait_until(lambda: cluster.job(job)["JobState"] == "PENDING", 60)
    assert 5 < len(metrics.read_text().splitlines()) < STEPS, "it was stopped on the way"
    cluster.wait_for(job, "COMPLETED")

    assert cluster.job(job)["Restarts"] == "1"
    assert Training.losses(script.parent / "run") == Training.losses(unbroken.parent / "run")
    assert Training.tensors(script.parent / "run", STEPS) == Training.tensors(unbroken.parent / "run", STEPS)

    # One file has the output of both starts; each rank of each start has a log.
    output = (script.parent / f"clozeline-train-{job}.out").read_text()
    assert output.count(f"The run was saved. Job {job} is requeued.") == 1
    assert "Traceback" not in output
    assert output.index("asked to stop") < output.index("Resuming from") < output.index(f"step {STEPS} of {STEPS}")
    logs = [log.relative_to(script.parent).parts[2:4] for log in script.parent.rglob("stdout.log")]
    assert sorted(logs) == [(f"start-{start}", f"node-{node}") for start in (0, 1) for node in (0, 1)]


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_launcher_of_deepspeeds_that_is_killed_fails_the_job(cluster: Cluster, tmp_path: Path, pairs: Path) -> None:
    """The outer launcher takes no notice of it and ends with 0."""
    script = train_script(tmp_path, pairs)
    metrics = tmp_path / "run/metrics.jsonl"
    job = cluster.submit(script, "--set", "run.max_steps=5000", LAUNCHER="deepspeed", PYTHONPATH=str(ROOT))
    cluster.wait_until(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 5, 600)

    launchers = [process for process in psutil.process_iter(["cmdline"]) if is_inner_launcher(process, tmp_path)]
    assert len(launchers) == 2
    for launcher in launchers:
        ranks = launcher.children()
        launcher.kill()
        for rank in ranks:  # as Slurm does where it has cgroups
            rank.kill()
    cluster.wait_until(lambda: cluster.job(job)["JobState"] == "FAILED", 120)
    assert "A launcher was killed. Submit the job again" in (tmp_path / f"clozeline-train-{job}.out").read_text()


def is_inner_launcher(process: psutil.Process, folder: Path) -> bool:
    words = process.info["cmdline"] or []
    return "deepspeed.launcher.launch" in words and any(str(folder) in word for word in words)


@pytest.mark.thorough
@pytest.mark.timeout(1500)
def test_an_array_makes_pairs_of_several_corpora_with_one_vocabulary(
    cluster: Cluster, command: Command, corpus: Path, tmp_path: Path
) -> None:
    """Three submissions, which wait for each other, make what the same commands make by hand."""
    other = tmp_path / "other.jsonl"
    other.write_text("".join(corpus.read_text().splitlines(keepends=True)[:40]))
    script = pipeline_script(tmp_path, [corpus, other])

    text = cluster.submit(script, "shard", PYTHONPATH=str(ROOT))
    vocabulary = cluster.submit(
        script, "vocab", flags=["--array=0", f"--dependency=afterok:{text}"], PYTHONPATH=str(ROOT)
    )
    pairs = cluster.submit(script, "pairs", flags=[f"--dependency=afterok:{vocabulary}"], PYTHONPATH=str(ROOT))
    for task in (f"{pairs}_0", f"{pairs}_1"):
        cluster.wait_for(task, "COMPLETED")

    for name, source in (("web", corpus), ("books", other)):
        by_hand = tmp_path / "by_hand" / name
        texts = ("--text", by_hand / "text", "--vocab", tmp_path / "vocab")
        for step in (
            ("shard", "--input", source, "--output", by_hand / "text", "--dedup", "exact"),
            ("pairs", *texts, "--output", by_hand / "pairs", "--objective", "nsp", "--max_length", 32),
        ):
            done = command(*step)
            assert done.returncode == 0, done.stderr
        assert fingerprint(tmp_path / name / "pairs") == fingerprint(by_hand / "pairs")

    # A finished step that is started again, as after a requeue, is left alone.
    again = cluster.submit(script, "shard", flags=["--array=1"], PYTHONPATH=str(ROOT))
    cluster.wait_for(f"{again}_1", "COMPLETED", 60)
    told = (tmp_path / f"clozeline-pipeline-{again}_1.out").read_text()
    assert f"{tmp_path}/books/text is already finished by this command; nothing was done." in told


def fingerprint(folder: Path) -> str:
    return json.loads((folder / "manifest.json").read_text())["fingerprint"]
