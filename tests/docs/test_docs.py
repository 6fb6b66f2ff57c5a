"""The pages in docs/ are true: commands run, and what they name exists."""

from __future__ import annotations

import ast
import json
import re
import shutil
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import transformers

from pipeline import cli as pipeline_cli
from pipeline.runtime import beam_internals
from pipeline.vocab.letters import write_letter_vocabulary
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.conftest import Command, made
from tests.docs.conftest import SMALL_RUN, Sandbox
from tests.docs.pages import PAGES, ROOT, blocks, code_spans, commands, prose
from tests.object_store import ObjectStore
from tests.small_models import random_model, write_hf
from tests.trainer.finetune.tasks import write_task as write_task_of_kind
from tests.trainer.suite.conftest import (
    minimal_pairs,
    subject_lines,
    tag_lines,
    verb_lines,
    write_lines,
    write_task,
)
from trainer import cli as trainer_cli
from trainer.config.load import load_recipe
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.section import Section
from trainer.config.shipped import recipe_names, recipe_text
from trainer.doctor import command as doctor_command
from trainer.export import cli as export_cli
from trainer.finetune import cli as finetune_cli
from trainer.suite import cli as suite_cli

LINKED = {**PAGES, **{name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "SECURITY.md")}}
DEPLOY_FLAGS = {"env", "for", "namespace", "net", "prefix", "spark", "target", "timeout"}
"""Of docker, kubectl, sky and the job server of Spark."""

LAUNCHER_FLAGS = {
    "constraint",
    "direct_num_workers",
    "environment_type",
    "flink_master",
    "force",
    "gpus",
    "hostfile",
    "index",
    "local",
    "master_port",
    "module",
    "nodes",
    "nnodes",
    "no",
    "nproc_per_node",
    "ntasks",
    "num_gpus",
    "project",
    "rdzv_backend",
    "rdzv_endpoint",
    "region",
    "runner",
    "signal",
    "timeout",
}
"""Flags of pip, hf, git, pytest, launchers, Slurm and Beam that pages mention (up to the first hyphen)."""


# Commands


def test_every_page_with_commands_is_tested() -> None:
    tested = {"README.md", "docs/quickstart.md", "docs/own_corpus.md", "docs/cluster.md", "docs/continue_published.md"}
    tested |= {"docs/proteins.md", "docs/finetune.md", "docs/suites.md", "docs/adapt.md"}
    assert {page for page in PAGES if commands(page)} == tested


@pytest.mark.timeout(600)
def test_the_quickstart(sandbox: Sandbox) -> None:
    sandbox.run_page("docs/quickstart.md")
    assert Path("out/hf/model.safetensors").exists()


@pytest.mark.timeout(600)
def test_a_corpus_from_a_to_z(sandbox: Sandbox) -> None:
    sandbox.run_page("docs/own_corpus.md")
    assert '"eval_mlm_loss"' in Path("out/run/metrics.jsonl").read_text()
    assert Path("out/hf/model.safetensors").exists()


@pytest.mark.timeout(600)
def test_training_on_a_cluster_of_one_machine(sandbox: Sandbox, pairs: Path, store: ObjectStore) -> None:
    store.bucket("bucket")
    sandbox.environment = store.environment
    sandbox.put(pairs, "out/pairs")
    sandbox.run_page("docs/cluster.md")
    assert Path("out/from_bucket/model.safetensors").exists()


@pytest.mark.timeout(600)
def test_a_published_model_is_continued(sandbox: Sandbox, vocab: Path) -> None:
    put_published_model(sandbox.folder / "models/bert-base-uncased", vocab)
    sandbox.run_page("docs/continue_published.md")
    assert Path("out/hf/model.safetensors").exists()


@pytest.mark.timeout(600)
def test_an_encoder_is_adapted(sandbox: Sandbox, vocab: Path) -> None:
    put_published_model(sandbox.folder / "models/bert-base-uncased", vocab)
    lines = [json.dumps({"text": f"The cat sees the river {i}.", "label": "ab"[i % 2]}) + "\n" for i in range(24)]
    for name, part in (("train", lines[:16]), ("dev", lines[16:])):
        Path(f"{name}.jsonl").write_text("".join(part))
    task = {"name": "letters", "kind": "sentence", "data": {"train": "train.jsonl", "dev": "dev.jsonl"}}
    Path("task.toml").write_text(tomli_w.dumps(task))

    (steps,) = [tomllib.loads(block) for block in blocks("docs/adapt.md", "toml") if is_other_file(block)]
    for name in ("domain", "task"):
        steps[name]["set"] = ["run.max_steps=3", "engine.precision=fp32"]
    steps["finetune"]["seeds"] = 1
    Path("steps.toml").write_text(tomli_w.dumps(steps))

    sandbox.run_page("docs/adapt.md")
    for output in ("out/adapted", "out/steps"):
        assert Path(output, "finetune/results.json").exists()


def is_other_file(block: str) -> bool:
    """Return whether a page's block of TOML is no part of a recipe, which its first line then says."""
    return block.startswith(("# steps.toml", "# review/task.toml"))


def test_proteins_become_pairs(sandbox: Sandbox) -> None:
    small = ["model.num_hidden_layers=2", "model.hidden_size=32", "model.num_attention_heads=2"]
    published_esm = load_recipe("esm2_8m", [*small, "model.intermediate_size=64"]).model
    proteins = ["MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ", "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSF", "MXGDVEKGKK"]
    Path("proteins.txt").write_text("".join(f"{protein}\n" for protein in proteins))
    write_letter_vocabulary("letters")
    vocabulary = read_vocabulary("letters")
    write_hf(random_model(published_esm, vocabulary), vocabulary, Path("out/hf"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(f"letters/{name}", f"out/hf/{name}")
    sandbox.run_page("docs/proteins.md")
    assert read_manifest("out/pairs", "pairs").totals["rows"] == len(proteins)


@pytest.mark.timeout(600)
def test_fine_tuning(sandbox: Sandbox, vocab: Path) -> None:
    put_published_model(sandbox.folder / "models/encoder", vocab)
    write_task_of_kind(sandbox.folder / "review", "sentence")
    Path("review/task.toml").write_text(next(text for text in blocks("docs/finetune.md", "toml")))
    heads = {
        "pairs": "SequenceClassification",
        "tags": "TokenClassification",
        "answers": "QuestionAnswering",
        "endings": "MultipleChoice",
    }
    for output, head in heads.items():
        model_class = getattr(transformers, f"AutoModelFor{head}")
        model_class.from_pretrained("models/encoder").save_pretrained(f"out/{output}/hf")
        transformers.AutoTokenizer.from_pretrained("models/encoder").save_pretrained(f"out/{output}/hf")
    sandbox.run_page("docs/finetune.md")
    assert Path("out/reviews/hf/model.safetensors").exists()
    check_keys_of_results(json.loads(Path("out/reviews/results.json").read_text()))


def check_keys_of_results(results: dict[str, Any]) -> None:
    """Check that the formats page explains every key of results.json."""
    section = PAGES["docs/formats.md"].split("### results.json")[1].split("\n### ")[0]
    seed = results["seeds"][0]
    [spread, *_] = results["summary"]["dev"].values()
    metrics = set(results["metrics"])
    for key in [*results, *spread, *seed, *(set(seed["epochs"][0]) - metrics)]:
        assert f"`{key}`" in section, key


@pytest.mark.timeout(900)
def test_suites_of_folders_and_of_a_run(sandbox: Sandbox, vocab: Path, pairs: Path) -> None:
    for name in ("out/hf", "models/other"):
        put_published_model(sandbox.folder / name, vocab)
    sandbox.put(pairs, "out/pairs")
    train = ["clozeline", "train", "--config", "tiny", "--set", "data.pairs=out/pairs", "--set", "run.output=out/run"]
    done = sandbox.run(sandbox.shrunk(train))
    assert done.returncode == 0, done.stderr

    folder = sandbox.folder / "suites"
    folder.mkdir()
    write_task(folder, "subjects", "sentence", subject_lines)
    write_task(folder, "verbs", "sentence", verb_lines)
    write_task(folder, "tags", "tags", tag_lines)
    write_lines(folder / "pairs/order.jsonl", minimal_pairs(12, 3))
    [suite] = [text for text in indented_blocks("docs/suites.md") if "[[tasks]]" in text]
    (folder / "nouns.toml").write_text(suite)

    sandbox.run_page("docs/suites.md")
    assert "| verbs | accuracy |" in Path("out/nouns/table.md").read_text()
    assert "Linear probe of each layer: tags" in Path("out/probe/report.html").read_text()
    assert "Scores of nouns over hours" in Path("out/run/report.html").read_text()


def indented_blocks(page: str) -> list[str]:
    """Return the content of a page's blocks of indented lines."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGES[page], re.MULTILINE)
    return [textwrap.dedent(block) for block in found]


def put_published_model(folder: Path, vocab: Path) -> None:
    """Write a folder with a small BERT as it would be published: config, safetensors and tokenizer."""
    changes = [f"{key}={value}" for key, value in SMALL_RUN.items() if key.startswith("model.")]
    model = load_recipe("bert_base", changes).model
    vocabulary = read_vocabulary(str(vocab))
    write_hf(random_model(model, vocabulary), vocabulary, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copy(vocab / name, folder / name)


def test_the_formats_are_read_as_written(sandbox: Sandbox, pairs: Path) -> None:
    sandbox.put(pairs, "out/pairs")
    sandbox.run_page("docs/formats.md")


def test_the_folders_hold_what_the_formats_page_says(command: Command, text: Path, vocab: Path, tmp_path: Path) -> None:
    page = PAGES["docs/formats.md"]
    flags = ("--text", text, "--vocab", vocab, "--objective", "nsp", "--static_masks", 2, "--max_length", 32)
    folder = made(command, tmp_path / "pairs", "pairs", *flags)
    for path in folder.iterdir():
        name = re.sub(r"-\d+-of-\d+", "-00000-of-00008", path.name)
        assert f"`{name}`" in page or f"`{name}/`" in page, name


# What pages name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_tables_are_valid_in_a_recipe(page: str, tmp_path: Path) -> None:
    for block in filter(lambda block: not is_other_file(block), blocks(page, "toml")):
        recipe = tomllib.loads(recipe_text("bert_base"))
        changes = tomllib.loads(block)
        if "global_tokens" in changes.get("batch", {}):
            recipe["batch"] = {}
        for section, values in changes.items():
            recipe[section] = values if section == "phases" else recipe.get(section, {}) | values
        path = tmp_path / "recipe.toml"
        path.write_text(tomli_w.dumps(recipe))
        load_recipe(str(path), [])


@pytest.mark.parametrize("page", LINKED)
def test_links_lead_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", LINKED[page]):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve() if name else ROOT / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in [anchor_of(heading) for heading in headings], target


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", [page for page in LINKED if page != "CHANGELOG.md"])
def test_files_in_the_text_exist(page: str) -> None:
    folders = ("schemas/", "pipeline/", "trainer/", "clozeline/", "tests/", "benchmarks/", "deploy/", "docs/")
    spans = re.findall(r"`([^`\n]+)`", LINKED[page])
    for span in spans:
        if span.startswith(folders) and re.fullmatch(r"[\w./-]+", span):
            assert (ROOT / span).exists(), span


def test_recipe_keys_in_the_text_exist() -> None:
    sections = {**{name: field.annotation for name, field in Recipe.model_fields.items()}, "phases": PhaseSection}
    for page in PAGES:
        for span in [*code_spans(page), *(word for command in commands(page) for word in command)]:
            match = re.fullmatch(r"([a-z]+)\.(\w+)(=.*| = .*)?", span)
            section = sections.get(match[1]) if match else None
            if match and isinstance(section, type) and issubclass(section, Section):
                is_file = match[2] in ("json", "md", "py", "safetensors", "toml")
                assert is_file or match[2] in section.model_fields, (page, span)


def test_flags_in_the_text_exist() -> None:
    parsers = [trainer_cli.parser(), pipeline_cli.parser(), doctor_command.parser("clozeline doctor")]
    parsers += [finetune_cli.parser("clozeline finetune"), suite_cli.parser("clozeline suite"), export_cli.parser()]
    helps = "".join(parser.format_help() for parser in parsers)
    sources = "".join(path.read_text() for path in (ROOT / "pipeline").glob("*.py"))
    known = (
        LAUNCHER_FLAGS | set(re.findall(r"--(\w+)", helps)) | set(re.findall(r"^    (\w+): ", sources, re.MULTILINE))
    )
    known |= DEPLOY_FLAGS | {"verbose", "no_wait", "rows", "no_lowercase", "help", "pool", "port", "host"}
    known |= {flag.lstrip("-") for flag in beam_internals.flag_names(beam_internals.flag_parser())}
    known |= {"shm"}  # Docker's --shm-size

    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
    known |= set(re.findall(r'add_argument\(\s*"--(\w+)"', benchmarks))

    for page in PAGES:
        for flag in re.findall(r"(?<![-\w<!])--([a-z]\w*)", PAGES[page]):
            assert flag in known, (page, flag)


def test_messages_in_the_troubleshooting_exist() -> None:
    messages = "\n".join(source_strings())
    quoted = re.findall(r"^\*\*`([^`]+)`", PAGES["docs/troubleshooting.md"], re.MULTILINE)
    assert len(quoted) > 5
    for message in quoted:
        for piece in message.split("..."):
            assert piece.strip(" .") in messages, message


def source_strings() -> list[str]:
    """Return every string of the source, without the values that f-strings insert."""
    strings: list[str] = []
    for folder in ("clozeline", "schemas", "pipeline", "trainer"):
        for path in (ROOT / folder).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text()))
            strings += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return strings


def test_every_recipe_and_exit_code_is_on_its_page() -> None:
    for name in recipe_names():
        assert f"`{name}`" in PAGES["docs/recipes.md"]
    for code in (0, 1, 2, 3, 4, 5, 75, 130):
        assert f"\n| {code} | " in PAGES["docs/troubleshooting.md"]


def test_every_page_can_be_found_from_the_readme() -> None:
    for page in PAGES:
        assert page == "README.md" or f"]({page})" in PAGES["README.md"], page


def test_no_line_of_prose_is_longer_than_120() -> None:
    for page in PAGES:
        for line in prose(page).splitlines():
            is_free = line.startswith(("|", "<!--", "- `")) or page in ("docs/recipes.md", "docs/task_files.md")
            assert is_free or len(line) <= 125, (page, line)
