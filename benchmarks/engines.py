"""Checks that all four jobs write the same bytes on every engine and with every shuffle.

    python benchmarks/engines.py OUT --corpora FOLDER --engines FOLDER [--only flink]

The folder of --engines holds Flink (`flink.sh` and its jars) and Beam's Prism (`prism.xz`). The folder of --corpora
holds peps.jsonl.zst and zh_documents.txt.zst. The fingerprint of each job's output is compared with that of a local
run in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

JOBS = ("shard", "near_duplicates", "vocab", "pairs", "statistics")
"""The commands to run. near_duplicates is `shard --dedup=minhash`."""

SHUFFLES = ("files", "merged", "service")
PARALLELISM = 4  # of Flink: two TaskManagers with two slots each
FEWER = 2  # for near-duplicates: at 4 they need more network memory than flink.sh gives (docs/engines.md)
START_SECONDS = 60
JOB_SECONDS = 600

CORPORA = {
    "english": ["peps.jsonl.zst"],
    "chinese": ["zh_documents.txt.zst", "--language=zh", "--text_layout=line"],
}
VOCABULARY = ["--model=wordpiece", "--size=8000"]
PAIRS = ["--objective=nsp", "--max_length=128"]

LOCAL = {
    "default": [],
    "multi_threading": ["--direct_running_mode=multi_threading", "--direct_num_workers=4"],
    "multi_processing": ["--direct_running_mode=multi_processing", "--direct_num_workers=4"],
}


def free_port() -> int:
    """Return a TCP port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a server for the duration of the block, which starts when its port accepts connections.

    Raises SystemExit if the server ends or does not answer within START_SECONDS.
    """
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[2]} did not start, see {log}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def worker_pool(out: Path) -> Iterator[list[str]]:
    """Run a pool of workers, and yield the flags that send an engine's work to it."""
    port = free_port()
    command = [sys.executable, "-m", "pipeline.beam.workers", "--pool", "--port", str(port)]
    with running(command, port, out / "pool.log"):
        yield ["--environment_type=EXTERNAL", f"--environment_config=localhost:{port}"]


@contextlib.contextmanager
def job_service(out: Path) -> Iterator[dict[str, list[str]]]:
    """Run Beam's own job server, with workers in separate processes."""
    port = free_port()
    server = [sys.executable, "-m", "apache_beam.runners.portability.local_job_service_main", "--port", str(port)]
    with running(server, port, out / "service.log"), worker_pool(out) as workers:
        yield {"job_service": ["--runner=portable", f"--job_endpoint=localhost:{port}", *workers]}


@contextlib.contextmanager
def flink(out: Path, engines: Path) -> Iterator[dict[str, list[str]]]:
    """Run Flink, and yield the flags for each of its three kinds of workers."""
    folder = out / "flink"
    job = free_port()
    script = ["bash", str(engines / "flink.sh")]
    subprocess.run([*script, "start", str(folder), str(free_port()), str(job)], check=True)
    flags = ["--runner=flink", f"--job_endpoint=localhost:{job}", f"--parallelism={PARALLELISM}"]
    worker = json.dumps({"command": str(Path(sys.executable).parent / "clozeline-worker")})
    try:
        with worker_pool(out) as workers:
            yield {
                "flink_loopback": [*flags, "--environment_type=LOOPBACK"],
                "flink_process": [*flags, "--environment_type=PROCESS", f"--environment_config={worker}"],
                "flink_external": [*flags, *workers],
            }
    finally:
        subprocess.run([*script, "stop", str(folder)], check=False)


@contextlib.contextmanager
def prism(out: Path, engines: Path) -> Iterator[dict[str, list[str]]]:
    """Unpack Prism and yield its flags. The job itself starts it."""
    program = out / "prism"
    with lzma.open(engines / "prism.xz") as packed, program.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    program.chmod(0o755)
    yield {"prism": ["--runner=prism", f"--prism_location={program}"]}


class Case(NamedTuple):
    """One line of the table."""

    engine: str
    language: str
    job: str
    shuffle: str


class Matrix:
    """Runs jobs, compares them with the local reference, and prints a line for each."""

    def __init__(self, out: Path, corpora: Path) -> None:
        self.out = out
        self.corpora = corpora
        self.wrong = 0

    def jobs(self, language: str) -> dict[str, list[str]]:
        """Return the arguments of each job without its output. Jobs after `shard` read the reference's outputs."""
        name, *more = CORPORA[language]
        reference = self.out / "reference" / language
        text = ["--text", str(reference / "shard")]
        return {
            "shard": ["shard", "--input", str(self.corpora / name), *more],
            "near_duplicates": ["shard", "--input", str(self.corpora / name), *more, "--dedup=minhash"],
            "vocab": ["vocab", *text, *VOCABULARY],
            "pairs": ["pairs", *text, "--vocab", str(reference / "vocab"), *PAIRS],
            "statistics": ["statistics", "--pairs", str(reference / "pairs"), "--window=5"],
        }

    def run(self, job: str, language: str, output: Path, flags: list[str]) -> str:
        """Run a job and return the fingerprint of its output, or why it failed."""
        arguments = [*self.jobs(language)[job], "--output", str(output), *flags]
        command = [sys.executable, "-m", "pipeline", *arguments]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=JOB_SECONDS)
        except subprocess.TimeoutExpired:
            return f"did not end within {JOB_SECONDS} s"
        if ran.returncode:
            return f"exit code {ran.returncode}: {ran.stderr.strip()[-300:]}"

        unfinished = [path.name for path in output.iterdir() if path.name.startswith("_") or "partial" in path.name]
        if unfinished:
            return f"left {unfinished}"
        return json.loads((output / "manifest.json").read_text())["fingerprint"]

    def reference(self, language: str) -> None:
        """Run all jobs locally in one process, in the order of their dependencies."""
        for job in JOBS:
            output = self.out / "reference" / language / job
            fingerprint = self.run(job, language, output, ["--direct_num_workers=1"])
            print(f"reference {language} {job}: {fingerprint}", flush=True)

    def compare(self, engine: str, flags: list[str]) -> None:
        """Run all jobs on one engine with every shuffle. `pairs` does not shuffle, so it runs once."""
        for language in CORPORA:
            for job in JOBS:
                more = [f"--parallelism={FEWER}"] if job == "near_duplicates" and "flink" in engine else []
                for shuffle in ("-",) if job == "pairs" else SHUFFLES:
                    self._check(Case(engine, language, job, shuffle), [*flags, *more])

    def _check(self, case: Case, flags: list[str]) -> None:
        expected = self.out / "reference" / case.language / case.job / "manifest.json"
        output = self.out / "tried"
        shuffle = [] if case.shuffle == "-" else [f"--shuffle={case.shuffle}"]

        started = time.monotonic()
        found = self.run(case.job, case.language, output, [*flags, *shuffle])
        seconds = time.monotonic() - started

        equal = found == json.loads(expected.read_text())["fingerprint"]
        result = "equal" if equal else f"DIFFERENT: {found}"
        print(f"| {' | '.join(case)} | {seconds:.1f} s | {result} |", flush=True)
        self.wrong += not equal
        shutil.rmtree(output, ignore_errors=True)


def main() -> int:
    flags = argparse.ArgumentParser(description="Compares what engines write with a local run.")
    flags.add_argument("out", type=Path)
    flags.add_argument("--corpora", type=Path, required=True)
    flags.add_argument("--engines", type=Path, required=True)
    flags.add_argument("--only", nargs="+", choices=("local", "job_service", "flink", "prism"))
    given = flags.parse_args()
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)

    matrix = Matrix(out, given.corpora.resolve())
    for language in CORPORA:
        matrix.reference(language)

    print("| engine | corpus | job | shuffle | time | bytes |\n|---|---|---|---|---|---|")
    engines = given.engines.resolve()
    groups = {
        "local": contextlib.nullcontext(LOCAL),
        "job_service": job_service(out),
        "flink": flink(out, engines),
        "prism": prism(out, engines),
    }
    for name in given.only or groups:
        with groups[name] as kinds:
            for engine, engine_flags in kinds.items():
                matrix.compare(engine, engine_flags)
    return 1 if matrix.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
