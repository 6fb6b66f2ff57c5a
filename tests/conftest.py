"""Fixtures that many tests share: small real data, made once per session with the commands that a user would run."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import fsspec
import pytest
from hypothesis import settings

from pipeline.cli import main
from tests import forked, memory_files
from tests.object_store import KEYS, ObjectStore

memory_files.register()
# Seconds on a shared machine say nothing about what a property test checks.
settings.register_profile("clozeline", deadline=None)
settings.load_profile("clozeline")
os.environ["HF_HUB_OFFLINE"] = "1"
# Hundreds of processes import the same modules. Without cached bytecode, each one would compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["OMP_NUM_THREADS"] = "1"  # in small models threads mostly wait, more so beside other tests
BIN = Path(sys.executable).parent
ESM2_VOCABULARY = Path(__file__).parents[1] / "pipeline/vocab/esm2"
os.environ["PATH"] = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"

NOUNS = ["cat", "dog", "river", "mountain", "teacher", "engine", "letter", "garden", "winter", "market", "story"]
NOUNS += ["window", "bridge", "captain", "number"]
VERBS = ["sees", "follows", "crosses", "paints", "remembers", "carries", "opens", "repairs", "leaves", "answers"]
VERBS += ["finds", "counts"]
PLACES = ["in the morning", "near the old town", "without a word", "under a grey sky", "for the second time"]
PLACES += ["as always"]


def sentence(rng: random.Random) -> str:
    subject, thing = rng.choice(NOUNS), rng.choice(NOUNS)
    return f"The {subject} {rng.choice(VERBS)} the {thing} {rng.choice(PLACES)}."


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """Return 120 documents of 1 to 30 sentences, the same in every session."""
    rng = random.Random(0)
    return [" ".join(sentence(rng) for _ in range(rng.randint(1, 30))) for _ in range(120)]


# Tests that run in the background of a shell or under `nohup` ignore these signals, and so do processes that they
# start. Restore the handlers, as in a terminal.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


def pytest_configure(config: pytest.Config) -> None:
    """Let the workers of xdist share a server of forked commands, unless no test starts one."""
    is_controller = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if is_controller and "not processes" not in config.option.markexpr:
        os.environ[forked.ADDRESS] = forked.server_address()


PROCESSES = {"beam_job_service", "engines", "finetune", "pool", "run", "sandbox", "store", "training", "wheel"}
"""The fixtures that start processes or servers, or whose tests do."""
PROCESS_NAMES = {"Command", "forked", "ran", "started", "subprocess"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes: by a fixture, or themselves, or in a function of their module.

    So are those that run a job of the pipeline, which may start workers, and not only read what a fixture has made.
    """
    for item in items:
        if isinstance(item, pytest.Function):
            code = item.function.__code__
            used = set(code.co_names)
            helpers = [getattr(item.module, name, None) for name in used]
            used |= {name for helper in helpers for name in getattr(getattr(helper, "__code__", None), "co_names", ())}
            runs_job = "command" in code.co_varnames[: code.co_argcount]
            if runs_job or PROCESS_NAMES & used or PROCESSES & set(item.fixturenames):
                item.add_marker("processes")


def after(statement: str, *command: object) -> list[str]:
    """Return the command, preceded by a Python statement (of `resource` or `signal`) that its process runs first.

    preexec_fn of subprocess would run it in a fork of this process, which crashes sometimes, because gRPC has threads.
    """
    code = f"import os, resource, signal, sys; {statement}; os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, *map(str, command)]


@pytest.fixture(scope="module", autouse=True)
def frozen_objects() -> None:
    """Leave all that is there before a file's tests out of searches for garbage, as the server of commands does.

    DeepSpeed searches whenever an engine is built or destroyed, and would visit a million objects of imported modules.
    """
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None


UNFREEZE = gc.unfreeze
"""The function that `frozen_objects` replaces."""


@pytest.fixture(autouse=True)
def restored_environment() -> Iterator[None]:
    """Restore the environment after each test, because later tests would inherit defaults that the tested code sets.

    One of them is the folder of DeepSpeed's kernels: in another folder, every later process would compile them again.
    """
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs a program of this environment to its end, as a process; see forked.py."""

    def call(*arguments: object, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        return forked.run(arguments, os.environ | environment, timeout=timeout)

    return call


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def command() -> Command:
    """Return a function that runs a command of `python -m pipeline` in this process, which is faster to start."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        words, out, err = list(map(str, arguments)), io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="session")
def corpus(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the documents as a JSONL file."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = (json.dumps({"text": text, "source": f"s{i % 3}"}) + "\n" for i, text in enumerate(documents))
    path.write_text("".join(lines))
    return path


def made(command: Command, folder: Path, job: str, *flags: object) -> Path:
    """Run a job of the pipeline, and return its finished folder."""
    done = command(job, "--output", folder, *flags)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def text(command: Command, corpus: Path) -> Path:
    """Return a finished folder of three text shards."""
    return made(command, corpus.parent / "text", "shard", "--input", corpus, "--num_shards", 3)


@pytest.fixture(scope="session")
def vocab(command: Command, text: Path) -> Path:
    """Return a finished WordPiece vocabulary."""
    return made(command, text.parent / "vocab", "vocab", "--text", text, "--model", "wordpiece", "--size", 160)


@pytest.fixture(scope="session")
def accented_vocab(command: Command, text: Path) -> Path:
    """Return a finished WordPiece vocabulary that ignores case and keeps accents."""
    case = ("--lowercase", "--keep_accents")
    return made(
        command, text.parent / "accented", "vocab", "--text", text, "--model", "wordpiece", "--size", 160, *case
    )


@pytest.fixture(scope="session")
def byte_vocab(command: Command, text: Path) -> Path:
    """Return a finished byte-level BPE vocabulary."""
    return made(command, text.parent / "byte_vocab", "vocab", "--text", text, "--model", "bytebpe", "--size", 400)


def rows(command: Command, name: str, text: Path, vocab: Path, objective: str, max_length: int = 32) -> Path:
    """Make rows of an objective, and return their finished folder, next to `text` and called `name`."""
    shape = ("--objective", objective, "--max_length", max_length)
    return made(command, text.parent / name, "pairs", "--text", text, "--vocab", vocab, *shape)


@pytest.fixture(scope="session")
def pairs(command: Command, text: Path, vocab: Path) -> Path:
    """Return NSP pairs of up to 32 tokens."""
    return rows(command, "pairs", text, vocab, "nsp")


@pytest.fixture(scope="session")
def sop_pairs(command: Command, text: Path, vocab: Path, byte_vocab: Path) -> list[Path]:
    """Return two folders of SOP pairs of up to 32 tokens, with WordPiece and with byte-level BPE."""
    return [rows(command, "sop_pairs", text, vocab, "sop"), rows(command, "byte_sop_pairs", text, byte_vocab, "sop")]


@pytest.fixture(scope="session")
def held_out(command: Command, text: Path, vocab: Path) -> Path:
    """Return other pairs with the same vocabulary, for evaluation."""
    return rows(command, "held_out", text, vocab, "nsp", max_length=28)


@pytest.fixture(scope="session")
def byte_rows(command: Command, text: Path, byte_vocab: Path) -> Path:
    """Return RoBERTa's rows of up to 32 tokens: byte-level BPE, one segment, no pair label."""
    return rows(command, "byte_rows", text, byte_vocab, "full_sentences")


@pytest.fixture(scope="session")
def unigram_vocab(command: Command, text: Path) -> Path:
    """Return a finished Unigram vocabulary with ALBERT's special tokens."""
    return made(command, text.parent / "unigram_vocab", "vocab", "--text", text, "--model", "unigram", "--size", 160)


@pytest.fixture(scope="session")
def xlnet_vocab(command: Command, text: Path) -> Path:
    """Return a finished Unigram vocabulary with XLNet's special tokens, which implies that it keeps case."""
    flags = ("--model", "unigram", "--special_tokens", "xlnet", "--size", 180, "--pad_to_multiple", 64)
    return made(command, text.parent / "xlnet_vocab", "vocab", "--text", text, *flags)


@pytest.fixture(scope="session")
def albert_vocab(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a Unigram vocabulary of tokenizers' own trainer, written as transformers writes ALBERT's."""
    from tokenizers import normalizers
    from transformers import AlbertTokenizer

    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    folder = tmp_path_factory.mktemp("albert") / "vocab"
    AlbertTokenizer(vocab=unigram_tokens(documents, specials, normalizers.Lowercase())).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def xlm_vocab(documents: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same as transformers writes XLM-R's, whose <mask> is its last token."""
    from tokenizers import normalizers
    from transformers import XLMRobertaTokenizer

    vocab = unigram_tokens(documents, ["<s>", "<pad>", "</s>", "<unk>"], normalizers.NFKC())
    folder = tmp_path_factory.mktemp("xlm") / "vocab"
    XLMRobertaTokenizer(vocab=[*vocab, ("<mask>", 0.0)]).save_pretrained(folder)
    return folder


def unigram_tokens(documents: list[str], specials: list[str], normalizer: object) -> list[tuple[str, float]]:
    """Return the tokens that tokenizers' own trainer learns, with their scores."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    learner = Tokenizer(models.Unigram())
    learner.normalizer = normalizer  # type: ignore[assignment]
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=specials, unk_token="<unk>", show_progress=False, initial_alphabet=["\u4e2d"]
    )
    learner.train_from_iterator([*documents, "0123456789 .,'\"-"], trainer)
    return [(token, score) for token, score in json.loads(learner.to_str())["model"]["vocab"]]


@contextmanager
def s3_variables(**variables: str) -> Iterator[None]:
    """Set variables for s3://, whose clients s3fs caches: those of another server must serve neither side of this."""
    forget_clients = fsspec.get_filesystem_class("s3").clear_instance_cache
    forget_clients()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
    forget_clients()


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    """Run an S3 server on loopback."""
    with s3_variables():
        made = ObjectStore()
        yield made
        made.stop()


@pytest.fixture
def s3(store: ObjectStore) -> Iterator[ObjectStore]:
    """Make s3:// use the server, without faults, in this process."""
    store.reset()
    with s3_variables(**KEYS, AWS_ENDPOINT_URL=store.endpoint):
        yield store


@pytest.fixture
def store_out_of_reach() -> Iterator[None]:
    """Make s3:// use an address where nothing answers."""
    with s3_variables(**KEYS, AWS_ENDPOINT_URL="http://127.0.0.1:9", AWS_MAX_ATTEMPTS="1"):
        yield
