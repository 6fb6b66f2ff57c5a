"""Values of Dataflow's flags that cannot be right are refused offline; what Google has, and may add, is taken."""

from __future__ import annotations

import socket

import fsspec
import pytest

from pipeline.readers.listing import matching_files
from pipeline.runtime import cloud_access
from pipeline.runtime.cloud_flags import check_image, check_labels, check_machine_type, check_region
from schemas.errors import StorageError, UsageError
from tests.object_store import ObjectStore

REGIONS = (
    "us-central1 europe-west12 asia-southeast2 australia-southeast1 northamerica-northeast1 me-central2 africa-south1"
)
MACHINES = (
    "n2-standard-4 n1-highmem-96 e2-medium f1-micro g1-small custom-4-8192 n2-custom-4-8192 n2-custom-2-15360-ext "
    "a2-highgpu-1g a3-highgpu-8g c3-standard-4-lssd m3-ultramem-32 t2d-standard-1 z3-highmem-14-standardlssd "
    "c4a-highcpu-8 x4-megamem-960-metal zones/us-central1-a/machineTypes/n1-standard-1"
)
IMAGES = (
    "us-docker.pkg.dev/my-project/images/clozeline:0.1.0 host:5000/a/b clozeline a/b_c.d--e:x_1 "
    "gcr.io/example.com:proj/img:1 gcr.io/p/i@sha256:" + "0" * 64 + " gcr.io/p/i:1@sha256:" + "f" * 64
)


def test_what_google_has_is_taken() -> None:
    for region in [*REGIONS.split(), "mars-q1"]:  # Google adds regions
        check_region(region)
    for machine in [*MACHINES.split(), "q9-gigantic-4"]:
        check_machine_type(machine)
    for image in IMAGES.split():
        check_image(image)
    check_labels(["team=nlp", "empty=", '{"a": "b", "c_1": "d-2"}'])


@pytest.mark.parametrize(
    ("region", "named"),
    [
        ("us-centrall1", "Did you mean central"),
        ("erope-west4", "Did you mean europe"),
        ("us-central1-a", "That is a zone; give its region, us-central1"),
        ("US-CENTRAL1", "no region"),
        ("us-central", "no region"),
        ("r", "no region"),
    ],
)
def test_a_region_that_cannot_exist_is_refused(region: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        check_region(region)


@pytest.mark.parametrize(
    ("machine", "named"),
    [
        ("n2-standrad-4", "Did you mean standard"),
        ("n2-highmen-4", "Did you mean highmem"),
        ("n2-standard", "lacks the number of CPUs"),
        ("n2 standard 4", "no machine type"),
        ("big", "no machine type"),
    ],
)
def test_a_machine_type_that_cannot_exist_is_refused(machine: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        check_machine_type(machine)


@pytest.mark.parametrize("image", ["gcr.io/p/clozeline :1", "https://gcr.io/p/i:1", "gcr.io/P/i", "gcr.io/p/", "a:1:2"])
def test_what_is_no_name_of_an_image_is_refused(image: str) -> None:
    with pytest.raises(UsageError, match="no name of an image"):
        check_image(image)


@pytest.mark.parametrize(
    "label", ["teamnlp", "Team=nlp", "team=NLP", "=nlp", "1=2", "team=a b", "{broken", "k" * 64 + "=v"]
)
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(UsageError, match="no label of Google Cloud"):
        check_labels(["step=shard", label])


def test_a_bucket_that_does_not_exist_is_refused_and_one_that_does_is_not(s3: ObjectStore) -> None:
    s3.bucket("corpora")
    assert cloud_access.check_buckets({"--output": "s3://corpora/text", "--text": "a/b"}) == []
    with pytest.raises(UsageError, match="--output s3://nobucket/text cannot be written: there is no bucket nobucket"):
        cloud_access.check_buckets({"--output": "s3://nobucket/text"})


def test_a_bucket_of_google_is_not_asked_without_credentials(monkeypatch) -> None:
    monkeypatch.setattr(cloud_access, "_can_ask_google", lambda: False)
    (line,) = cloud_access.check_buckets({"--temp_location": "gs://b/tmp"})
    assert line == "not checked: whether the bucket of --temp_location gs://b/tmp exists"


def test_dataflow_without_credentials_is_refused_before_anything_is_asked_or_written(run, tmp_path) -> None:
    """No server for metadata answers here, as on any machine outside of Google's cloud."""
    pytest.importorskip("google.cloud.dataflow")
    cloud = ["--runner=DataflowRunner", "--project=my-project", "--region=us-central1", "--temp_location=gs://b/tmp"]
    places = ["--input=memory://none/a.jsonl", "--output=memory://none/text", "--sdk_container_image=host/a:1"]
    metadata = {"GCE_METADATA_IP": "127.0.0.1:9", "GCE_METADATA_HOST": "127.0.0.1:9", "GCE_METADATA_TIMEOUT": "1"}
    done = run("python", "-m", "pipeline", "shard", *places, *cloud, HOME=str(tmp_path), **metadata)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("clozeline: --runner DataflowRunner needs credentials of Google Cloud")
    assert "gcloud auth application-default login" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_fault_of_the_network_is_not_blamed_on_the_disk(monkeypatch) -> None:
    """As s3fs and gcsfs raise it: an OSError, without an answer of the store."""

    class Unreachable(fsspec.AbstractFileSystem):
        protocol = "nowhere"

        def info(self, path, **_):
            raise socket.gaierror(-2, "Name or service not known")

        def glob(self, path, maxdepth=None, **_):
            return self.info(path)

    fsspec.register_implementation("nowhere", Unreachable, clobber=True)
    for pattern in ("nowhere://corpus/a.jsonl", "nowhere://corpus/*.jsonl"):
        with pytest.raises(StorageError, match=r"cannot be reached \(gaierror.*the credentials and the network"):
            matching_files(pattern)
