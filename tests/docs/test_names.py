"""What the pages in docs/ name exists: files, links, keys, flags, messages, recipes and exit codes."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import tomli_w

from clozeline.start import cli as start_cli
from pipeline import cli as pipeline_cli
from pipeline.beam import internals
from tests.docs.pages import PAGES, ROOT, blocks, code_spans, commands, is_no_recipe, prose
from trainer import cli as trainer_cli
from trainer import doctor, report
from trainer.config.load import load_recipe, recipe_names, recipe_text
from trainer.config.schema import PhaseSection, Recipe
from trainer.config.sections import Section
from trainer.export import cli as export_cli
from trainer.finetune import cli as finetune_cli
from trainer.suite import cli as suite_cli

LINKED = {**PAGES, **{name: (ROOT / name).read_text(encoding="utf-8") for name in ("CHANGELOG.md", "SECURITY.md")}}
DEPLOY_FLAGS = {"env", "for", "namespace", "net", "prefix", "spark", "target", "timeout"}
"""Of docker, kubectl, sky and the job server of Spark."""

SOURCES = ("clozeline", "schemas", "pipeline", "trainer")

LAUNCHER_FLAGS = {"check", "constraint", "direct_num_workers", "environment_type", "flink_master", "force", "gpus"}
LAUNCHER_FLAGS |= {"hostfile", "index", "local", "master_port", "module", "nnodes", "no", "nproc_per_node"}
LAUNCHER_FLAGS |= {"num_gpus", "project", "rdzv_backend", "rdzv_endpoint", "region", "runner", "signal", "timeout"}
"""Flags of pip, hf, git, pytest, ruff, launchers, Slurm and Beam that pages mention (up to the first hyphen)."""


def test_every_page_with_commands_is_tested() -> None:
    tested = {"README.md", "docs/quickstart.md", "docs/own_corpus.md", "docs/cluster.md"}
    tested |= {"docs/proteins.md", "docs/finetune.md", "docs/suites.md", "docs/adapt.md", "docs/filters.md"}
    tested |= {"CONTRIBUTING.md"}
    assert {page for page in PAGES if commands(page)} == tested


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_tables_are_valid_in_a_recipe(page: str, tmp_path: Path) -> None:
    for block in filter(lambda block: not is_no_recipe(block), blocks(page, "toml")):
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


def test_the_map_of_folders_names_files_and_code_that_exist() -> None:
    page = "docs/architecture.md"
    rows = [line.strip("| ").split(" | ") for line in PAGES[page].splitlines() if line.startswith("| `")]
    places = [(re.findall(r"`(\w[\w/]*/)`", row[0]), row[-1]) for row in rows]
    mapped = [(folders, file.strip("`")) for folders, file in places if folders and file.endswith(".py`")]
    assert len(mapped) > 10
    for folders, file in mapped:
        assert any((ROOT / folder / file).exists() for folder in folders), (folders, file)

    sources = "".join(path.read_text() for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    words = set(re.findall(r"\w+", sources))
    names = [span for span in code_spans(page) if re.fullmatch(r"[A-Z]\w+(\.\w+)?|[a-z]+(_[a-z0-9]+)+", span)]
    assert len(names) > 20
    for name in names:
        assert words.issuperset(name.split(".")), name


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
    parsers = [trainer_cli.parser(), pipeline_cli.parser(), doctor.parser("clozeline doctor")]
    parsers += [finetune_cli.parser("clozeline finetune"), suite_cli.parser("clozeline suite"), export_cli.parser()]
    parsers += [start_cli.parser("clozeline start"), report.parser("clozeline report")]
    helps = "".join(parser.format_help() for parser in parsers)
    sources = "".join(path.read_text() for path in (ROOT / "pipeline").glob("*.py"))
    known = set(re.findall(r"--(\w+)", helps)) | set(re.findall(r"^    (\w+): ", sources, re.MULTILINE))
    known |= {"verbose", "no_wait", "rows", "no_lowercase", "no_keep_accents", "help", "pool", "port", "host"}
    known |= LAUNCHER_FLAGS | DEPLOY_FLAGS
    known |= {flag.lstrip("-") for flag in internals.flag_names(internals.flag_parser())}
    known |= {"shm", "logdir"}  # Docker's --shm-size, TensorBoard's --logdir

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
    for folder in SOURCES:
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


def test_no_line_of_prose_is_longer_than_125() -> None:
    for page in PAGES:
        for line in prose(page).splitlines():
            is_free = line.startswith(("|", "<!--")) or page in ("docs/recipes.md", "docs/task_files.md")
            assert is_free or len(line) <= 125, (page, line)
