"""The pages on corpora, vocabularies and pretraining: their commands run as written."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from pipeline.filters.rules import chosen_rules
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.conftest import ESM2_VOCABULARY, Command, made
from tests.docs.conftest import Sandbox
from tests.docs.pages import PAGES, blocks
from tests.object_store import ObjectStore
from tests.pipeline.filters.test_filters import LINES
from tests.small_models import random_model, write_hf
from trainer.config.load import load_recipe


@pytest.mark.timeout(600)
def test_the_quickstart(sandbox: Sandbox) -> None:
    sandbox.run_page("docs/quickstart.md")
    assert Path("out/hf/model.safetensors").exists()


@pytest.mark.timeout(600)
def test_a_corpus_from_a_to_z(sandbox: Sandbox, documents: list[str]) -> None:
    Path("articles").mkdir()
    for number, text in enumerate(documents):
        paragraphs = text.replace(". ", ".\n\n")
        Path("articles", f"{number}.txt").write_text(paragraphs)

    sandbox.run_page("docs/own_corpus.md")
    kept, held_out = (read_manifest(f"out/{name}", "text").totals["documents"] for name in ("text", "text_heldout"))
    assert kept + held_out == len(set(documents)), "a file is a document"
    assert '"eval_mlm_loss"' in Path("out/run/metrics.jsonl").read_text()
    assert Path("out/hf/model.safetensors").exists()


def test_text_is_filtered(sandbox: Sandbox, tmp_path: Path) -> None:
    Path("corpus/a.jsonl").write_text(json.dumps({"text": "\n\n".join(LINES)}))  # the corpus itself is no prose
    sandbox.run_page("docs/filters.md")
    for number, block in enumerate(blocks("docs/filters.md", "toml")):
        rules = tmp_path / f"{number}.toml"
        rules.write_text(block)
        assert chosen_rules(str(rules), "en")[0]["min_words"] == 20


@pytest.mark.timeout(600)
def test_training_on_a_cluster_of_one_machine(sandbox: Sandbox, pairs: Path, store: ObjectStore) -> None:
    store.bucket("bucket")
    sandbox.environment = store.environment
    sandbox.put(pairs, "out/pairs")
    sandbox.run_page("docs/cluster.md")
    assert Path("out/from_bucket/model.safetensors").exists()


def test_proteins_become_pairs(sandbox: Sandbox) -> None:
    small = ["model.num_hidden_layers=2", "model.hidden_size=32", "model.num_attention_heads=2"]
    published_esm = load_recipe("esm2_8m", [*small, "model.intermediate_size=64"]).model
    proteins = ["MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ", "MVLSPADKTNVKAAWGKVGAHAGEYGAEALERMFLSF", "MXGDVEKGKK"]
    Path("proteins.txt").write_text("".join(f"{protein}\n" for protein in proteins))
    vocabulary = read_vocabulary(str(ESM2_VOCABULARY))
    write_hf(random_model(published_esm, vocabulary), vocabulary, Path("out/hf"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ESM2_VOCABULARY / name, f"out/hf/{name}")
    sandbox.run_page("docs/proteins.md")
    assert read_manifest("out/pairs", "pairs").totals["rows"] == len(proteins)


def test_xml_and_html_become_documents(sandbox: Sandbox) -> None:
    play = '<TEI xmlns="http://www.tei-c.org/ns/1.0"><text><sp><speaker>A</speaker><l>To be,\n or <hi>not</hi></l></sp>'
    files = {"a/b.xml": "<article><title>T</title><p>One &amp; two.</p><p/><p>Three.</p></article>", "c.xml": play}
    for name, text in files.items():
        path = Path("xml", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, data in {"empty.xml": b"", "blank.xml": b" \n", "none.xml": b"\0\1no"}.items():
        Path("xml", name).write_bytes(data)
    posts = [{"body": "<p>One &amp; <b>two</b>.</p><pre><code>a &lt; b</code></pre>"}, {"body": None}]
    Path("posts.jsonl").write_text("".join(f"{json.dumps(post)}\n" for post in posts))
    sandbox.run_page("docs/input.md")
    assert Path("texts.jsonl").read_text() == '{"text": "One & two.\\n\\na < b\\n\\n"}\n{"text": ""}\n'
    documents = [json.loads(line)["text"] for line in Path("articles.jsonl").read_text().splitlines()]
    assert [document.split("\n\n") for document in documents] == [["One & two.", "", "Three."], ["To be, or not"]]


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
