"""Jobs as Dataflow's own client builds them, offline: their flags, their size, and what the service is asked for.

Not proven: what the service does with them.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.portability import common_urns
from apache_beam.runners.portability.fn_api_runner import translations

from pipeline.beam.internals import temporary_files_removed
from pipeline.commit.finished import Provenance
from pipeline.commit.staging import Staging
from pipeline.exchange.blocks import Way
from pipeline.jobs.counts import CountPlan, CountWords
from pipeline.jobs.learn_vocabulary import VocabularyPlan
from pipeline.jobs.shard import ShardCorpora
from pipeline.jobs.text_folder import TextFolder
from pipeline.jobs.vocab import MakeVocabulary
from pipeline.options import ShardJob, VocabJob
from pipeline.readers.corpora import Corpus
from pipeline.words.rules import Rules
from schemas.errors import UsageError
from tests.pipeline.beam_flags import execution_of, options_of

pytest.importorskip("google.cloud.dataflow", reason='Dataflow\'s client is not installed (the extra "gcp")')

CLOUD = ["--runner=DataflowRunner", "--project=my-project", "--region=us-central1", "--temp_location=gs://bucket/tmp"]
CLOUD += ["--sdk_container_image=us-docker.pkg.dev/p/images/clozeline:1", "--dry_run=True"]
SPLITS = 100_000


def built(*flags: str, dedup: str = "none") -> tuple[Any, Any]:
    """The runner and the client's job, of `shard` with many splits."""
    job = ShardJob(input="x", output="o", dedup=dedup)  # type: ignore[arg-type]
    staging = Staging("s3://bucket/text", "job", "token")
    graph = ShardCorpora(SPLITS, SPLITS << 24, job, ((Corpus(), job),), Provenance({}, [], 0), Way("service", staging))
    with temporary_files_removed():
        pipeline = execution_of("Shard corpora", graph, options_of([*CLOUD, *flags]), staging).build()
        result: Any = pipeline.run()
    return pipeline.runner, result.job


@pytest.mark.parametrize("dedup", ["none", "minhash"])
def test_the_job_of_100_000_splits_is_small_and_every_long_step_begins_behind_a_shuffle(dedup: str) -> None:
    runner, _ = built(dedup=dedup)
    proto = runner.proto_pipeline
    assert len(proto.SerializeToString()) < 1_000_000  # the service takes 10 MB as JSON

    transforms = proto.components.transforms
    groups = [transform.unique_name for transform in transforms.values() if "group_by_key" in transform.spec.urn]
    assert any("Distribute splits" in name for name in groups)  # so that reading is not fused to the list of splits
    assert any("By group" in name for name in groups)
    images = {environment.payload for environment in proto.components.environments.values()}
    assert all(b"us-docker.pkg.dev/p/images/clozeline:1" in payload for payload in images)


def test_flags_of_the_service_reach_the_job() -> None:
    flags = ["--job_name=shard-web", "--labels=team=nlp", "--labels=step=shard", "--num_workers=2"]
    flags += ["--max_num_workers=50", "--worker_machine_type=n2-standard-4", "--dataflow_service_options=enable_prime"]
    _, job = built(*flags, "--service_account_email=a@b.iam.gserviceaccount.com")
    assert job.proto.name == "shard-web" and dict(job.proto.labels) == {"team": "nlp", "step": "shard"}
    values = job.options.get_all_options()
    assert values["machine_type"] == "n2-standard-4"
    assert (values["num_workers"], values["max_num_workers"]) == (2, 50)
    cloud = job.options.view_as(GoogleCloudOptions)
    assert cloud.dataflow_service_options == ["enable_prime"]
    assert cloud.service_account_email == "a@b.iam.gserviceaccount.com"


WRONG = {
    "job name": ("--job_name=Not_A_Name", "Not_A_Name"),
    "project": ("--project=12345", "12345"),
    "workers": ("--max_num_workers=0", "max_num_workers"),
    "fewer than at first": ("--num_workers=9 --max_num_workers=3", "cannot exceed"),
}


@pytest.mark.parametrize(("flags", "named"), WRONG.values(), ids=WRONG)
def test_a_dry_run_refuses_what_dataflow_would(flags: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        built(*flags.split())


def test_a_dry_run_for_dataflow_leaves_nothing_on_disk_or_in_the_store(run, corpus, store, tmp_path) -> None:
    """Beam would leave folders of temporary files, and the store is asked for names and sizes alone."""
    store.reset()
    bucket = store.bucket("corpora")
    bucket.put_object(Key="raw/corpus.jsonl", Body=corpus.read_bytes())
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()

    places = ("--input=s3://corpora/raw/*.jsonl", "--output=s3://corpora/text")
    variables = store.environment | {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    done = run("python", "-m", "pipeline", "shard", *places, *CLOUD, **variables)
    assert done.returncode == 0, done.stderr
    assert "worker-hours" in done.stdout
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["home", "temporary"]
    assert {method for method, _ in store.requests} <= {"GET", "HEAD"}
    assert [item.key for item in bucket.objects.all()] == ["raw/corpus.jsonl"]


# What each stage carries, by Beam's own rules of fusion, which engines share


def stages_of(proto: Any) -> list[set[str]]:
    """The names of the transforms that run together, without the graph's own name."""
    phases = [
        translations.annotate_downstream_side_inputs,
        translations.fix_side_input_pcoll_coders,
        translations.lift_combiners,
        translations.expand_gbk,
        translations.sink_flattens,
        translations.greedily_fuse,
    ]
    primitives = frozenset([common_urns.primitives.IMPULSE.urn, common_urns.primitives.GROUP_BY_KEY.urn])
    _, stages = translations.create_and_optimize_stages(copy.deepcopy(proto), phases, primitives)
    return [{transform.unique_name.partition("/")[2] for transform in stage.transforms} for stage in stages]


def built_vocabulary() -> Any:
    """The graph of `vocab` for a terabyte of text, as the service gets it."""
    staging = Staging("s3://bucket/vocab", "job", "token")
    job = VocabJob(text="s3://bucket/text", output="s3://bucket/vocab", model="wordpiece", size=30_522, lowercase=True)
    text = TextFolder("s3://bucket/text", "", num_shards=16_384, num_parts=4, text_bytes=10**12)
    count_plan = CountPlan(text, ["web"], (Rules("wordpiece", lowercase=True),), is_result=False)
    counted = CountWords(count_plan, Way("service", staging))
    plan = VocabularyPlan(job, count_plan.partitions, ["web"], staging)
    graph = MakeVocabulary(plan, Provenance({}, [], 0), counted, [], min_ram="24GB")
    with temporary_files_removed():
        pipeline: Any = execution_of("Vocabulary", graph, options_of(CLOUD), staging).build()
        pipeline.run()
    return pipeline.runner.proto_pipeline


def carrying(stages: list[set[str]], name: str) -> set[str]:
    (stage,) = [stage for stage in stages if name in stage]
    return stage


def test_steps_of_shard_that_take_long_run_in_stages_of_their_own() -> None:
    """So that each is spread over all workers, and a failure repeats no other one."""
    stages = stages_of(built()[0].proto_pipeline)
    listing = carrying(stages, "Splits")
    reading = carrying(stages, "Write runs")
    sending = carrying(stages, "Write shards/Documents blocks")
    writing = carrying(stages, "Write shards/Consume")
    finishing = carrying(stages, "Finish/Call")
    assert len({id(stage) for stage in (listing, reading, sending, writing, finishing)}) == 5
    # Reports travel no further than to their part of the manifest.
    assert "Summarize parts/Group/Write" in writing


def test_learning_asks_for_memory_and_shares_its_worker_with_no_other_step() -> None:
    proto = built_vocabulary()
    asking = set()
    for transform in proto.components.transforms.values():
        environment = proto.components.environments.get(transform.environment_id)
        hints = dict(environment.resource_hints) if environment else {}
        if hints:
            assert hints == {"beam:resources:min_ram_bytes:v1": b"24000000000"}
            asking.add(transform.unique_name.split("/")[1])
    assert asking == {"Learn"}

    stages = stages_of(proto)
    long_steps = ("Count words/Lots/Divide", "Count words/Count lots", "Count words/Add counts/Consume")
    separate = [carrying(stages, name) for name in (*long_steps, "Learn/Call", "Describe", "Finish/Call")]
    assert len({id(stage) for stage in separate}) == 6
    beside_learning = {name for name in carrying(stages, "Learn/Call") if not name.startswith("Learn/")}
    assert beside_learning <= {"Read", "Write"}  # of its input and its result
