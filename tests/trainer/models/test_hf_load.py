"""A run begins with published weights, or says before its first step why it cannot."""

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from schemas.errors import ClozelineError, DataError, UsageError
from schemas.vocabulary import read_vocabulary
from tests.conftest import ESM2_VOCABULARY
from tests.small_models import FAMILIES, OWN_SIZES, SIZES, random_model, section, write_hf
from tests.trainer.conftest import saved
from trainer.export.convert import export
from trainer.models.electra import parts_of
from trainer.models.hf_config import hf_config
from trainer.models.hf_load import warm_start
from trainer.models.pretraining import PretrainingModel
from trainer.models.starting_weights import build_model


def state(model: PretrainingModel) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.fixture
def case(vocab: Path, tmp_path: Path) -> SimpleNamespace:
    """A BERT's folder and a fresh BERT to be filled from it."""
    vocabulary = read_vocabulary(str(vocab))
    published = random_model(section("bert"), vocabulary)
    folder = write_hf(published, vocabulary, tmp_path / "hf")
    fresh = build_model(section("bert"), vocabulary.size, 5)
    return SimpleNamespace(vocabulary=vocabulary, published=published, folder=folder, fresh=fresh)


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


PUBLISHED_ESM_TOKENS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
"""vocab.txt of facebook/esm2_t6_8M_UR50D, in the order of its lines."""


def test_published_esm_2_has_the_ids_of_our_letters_under_its_own_names(tmp_path: Path) -> None:
    vocabulary = read_vocabulary(str(ESM2_VOCABULARY))
    published = random_model(section("esm"), vocabulary)
    fresh = build_model(section("esm"), vocabulary.size, 5)
    folder = write_hf(published, vocabulary, tmp_path / "hf")

    (folder / "vocab.txt").write_text("\n".join(PUBLISHED_ESM_TOKENS.split()))
    assert warm_start(fresh, str(folder), vocabulary) == []
    assert all(torch.equal(weight, state(published)[name]) for name, weight in state(fresh).items())

    # Only the names of special tokens differ: letters in another order are another vocabulary.
    (folder / "vocab.txt").write_text("\n".join(PUBLISHED_ESM_TOKENS.replace("L A", "A L").split()))
    with pytest.raises(DataError, match="token 4 is 'A' there and 'L' here"):
        warm_start(fresh, str(folder), vocabulary)


OLD = {".weight": ".gamma", ".bias": ".beta"}
LAYOUTS: dict[str, tuple[Callable[[dict], dict], list[str]]] = {
    "bare encoder": (
        lambda t: {n.removeprefix("bert."): w for n, w in t.items() if n.startswith("bert.")},
        ["mlm_head", "pair_head"],
    ),
    "masked LM alone": (
        lambda t: {n: w for n, w in t.items() if "pooler" not in n and "seq_relationship" not in n},
        ["encoder.pooler", "pair_head"],
    ),
    "old names": (
        lambda t: {
            (n.rsplit(".", 1)[0] + OLD["." + n.rsplit(".", 1)[1]] if "LayerNorm" in n else n): w for n, w in t.items()
        },
        [],
    ),
    "decoder listed": (
        lambda t: t | {"cls.predictions.decoder.weight": t["bert.embeddings.word_embeddings.weight"].clone()},
        [],
    ),
    "half precision and buffers": (
        lambda t: {n: w.bfloat16() for n, w in t.items()} | {"bert.embeddings.position_ids": torch.arange(9)},
        [],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_that_were_published(case, layout: str) -> None:
    change, absent = LAYOUTS[layout]
    rewrite(case.folder, change)
    before = state(case.fresh)
    published = state(case.published)
    assert warm_start(case.fresh, str(case.folder), case.vocabulary) == absent
    for name, weight in state(case.fresh).items():
        kept = name.startswith(tuple(absent))
        tolerance = 0.01 if layout.startswith("half") else 0.0
        torch.testing.assert_close(weight, (before if kept else published)[name], atol=tolerance, rtol=tolerance)


def test_weights_in_several_files(case) -> None:
    tensors = load_file(case.folder / "model.safetensors")
    halves = {"model-1.safetensors": list(tensors)[::2], "model-2.safetensors": list(tensors)[1::2]}
    for file, names in halves.items():
        save_file({name: tensors[name] for name in names}, case.folder / file)
    index = {"weight_map": {name: file for file, names in halves.items() for name in names}}
    (case.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (case.folder / "model.safetensors").unlink()
    warm_start(case.fresh, str(case.folder), case.vocabulary)
    assert torch.equal(case.fresh.encoder.layers[3].up.weight, case.published.encoder.layers[3].up.weight)


def test_of_several_segments_without_a_use_the_first_is_kept(byte_vocab: Path, tmp_path: Path, caplog) -> None:
    """A RobertaConfig's default is two, and RoBERTa's tokenizer puts every token into the first."""
    vocabulary = read_vocabulary(str(byte_vocab))
    published = random_model(section("roberta"), vocabulary)
    folder = write_hf(published, vocabulary, tmp_path / "hf", type_vocab_size=2)
    name = "roberta.embeddings.token_type_embeddings.weight"
    rewrite(folder, lambda t: t | {name: torch.cat([t[name], torch.ones(1, 48)])})

    fresh = build_model(section("roberta"), vocabulary.size, 5)
    assert warm_start(fresh, str(folder), vocabulary) == []
    assert all(torch.equal(weight, state(published)[name]) for name, weight in state(fresh).items())
    assert "hf has 2 segments. All tokens are in the first here, and in the export." in caplog.text


def test_electra_s_generator_does_not_become_a_discriminator(vocab: Path, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    published = parts_of(random_model(section("electra", "generator_size=1.0"), vocabulary))["generator"]
    folder = write_hf(published, vocabulary, tmp_path / "hf")
    fresh = parts_of(build_model(section("electra"), vocabulary.size, 5))[""]
    with pytest.raises(UsageError, match=r"hf holds the generator of an ELECTRA.*folder, ElectraForPreTraining, and"):
        warm_start(fresh, str(folder), vocabulary)


def drop(name: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda t: {n: w for n, w in t.items() if n != name})


def put(name: str, tensor: torch.Tensor) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, lambda t: t | {name: tensor})


def config(**values: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def only(name: str, content: bytes) -> Callable[[Path], None]:
    """A file in place of the safetensors."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(content)

    return change


def dead_link(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("../blobs/1")


UP = "bert.encoder.layer.1.intermediate.dense.weight"
INDEX = json.dumps({"weight_map": {"a": "../other.safetensors"}}).encode()
FAULTS: dict[str, tuple[Callable[[Path], object], type[ClozelineError], str]] = {
    "another family": (config(model_type="electra"), UsageError, "model_type is 'electra', the recipe makes it 'bert'"),
    "other sizes": (
        config(num_hidden_layers=12, hidden_size=768),
        UsageError,
        "hidden_size is 768, the recipe makes it 48; num_hidden_layers is 12, the recipe makes it 4",
    ),
    "a head with a matrix of its own": (
        config(tie_word_embeddings=False),
        UsageError,
        "tie_word_embeddings false, so .* cannot be continued",
    ),
    "relative positions": (
        config(position_embedding_type="relative_key"),
        UsageError,
        "position_embedding_type is 'relative_key'",
    ),
    "a tensor missing": (drop(UP), DataError, f"{UP} is missing"),
    "half a head": (drop("cls.predictions.bias"), DataError, "cls.predictions.bias is missing"),
    "a tensor misshapen": (put(UP, torch.zeros(80, 47)), DataError, rf"{UP} is \[80, 47\], expected \[80, 48\]"),
    "not a number": (put(UP, torch.full((80, 48), torch.nan)), DataError, f"{UP} holds values that are not finite"),
    "another size of vocabulary": (
        config(vocab_size=30522),
        DataError,
        "a vocabulary of 30522 tokens, the pairs of 160",
    ),
    "other tokens": (
        lambda folder: (folder / "vocab.txt").write_text("[PAD]\n[UNK]\nelse\n"),
        DataError,
        r"another vocabulary than the pairs: token 2 is 'else' there and '\[",
    ),
    "a decoder of its own": (
        put("cls.predictions.decoder.weight", torch.zeros(160, 48)),
        DataError,
        "a decoder that differs from its token embeddings",
    ),
    "cut short": (only("model.safetensors", b"\x10\0\0\0\0\0\0\0{}"), DataError, "cannot be read as safetensors"),
    "an index that leads outside": (
        only("model.safetensors.index.json", INDEX),
        DataError,
        "must name safetensors in its own folder",
    ),
    "an index of pickles": (
        only("model.safetensors.index.json", b'{"weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}'),
        DataError,
        "must name safetensors in its own folder",
    ),
    "a link to no weights": (
        lambda folder: dead_link(folder / "model.safetensors"),
        DataError,
        r"model\.safetensors is a link to \.\./blobs/1, which does not exist\. Download it again",
    ),
    "a link to no tokenizer": (
        lambda folder: dead_link(folder / "tokenizer.json"),
        DataError,
        r"tokenizer\.json is a link to \.\./blobs/1, which",
    ),
    "no weights": (only("notes.txt", b""), UsageError, r"holds no model\.safetensors"),
    "a config that is no JSON": (
        lambda folder: (folder / "config.json").write_text("{"),
        DataError,
        r"config\.json is not JSON",
    ),
    "no folder": (lambda folder: (folder / "config.json").unlink(), UsageError, "is not a Hugging Face folder"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_cannot_be_begun_with(case, fault: str) -> None:
    """Told before anything is changed."""
    change, error, message = FAULTS[fault]
    change(case.folder)
    before = state(case.fresh)
    with pytest.raises(error, match=message):
        warm_start(case.fresh, str(case.folder), case.vocabulary)
    assert all(torch.equal(weight, before[name]) for name, weight in state(case.fresh).items())


@pytest.mark.parametrize("family", [*FAMILIES, "electra", "xlnet"])
def test_dropout_is_the_recipe_s(vocab: Path, byte_vocab: Path, tmp_path: Path, family: str) -> None:
    """It does not change what weights mean: a published model can be trained on with another one.

    Nor does the pooling of a classifier, a head that pretraining does not have.
    """
    vocabulary = read_vocabulary(str(byte_vocab if family == "roberta" else vocab))
    published = parts_of(random_model(section(family), vocabulary))[""]
    rates = {key: 0.3 for key in hf_config(published.shape, vocabulary) if "dropout" in key}
    rates.pop("token_dropout", None)  # ESM's, which says how embeddings are scaled
    pooling = {"classifier_pooling": "cls"} if family == "modernbert" else {}
    folder = write_hf(published, vocabulary, tmp_path, **rates, **pooling)

    fresh = parts_of(build_model(section(family), vocabulary.size, 5))[""]
    assert rates and warm_start(fresh, str(folder), vocabulary) == []


@pytest.mark.parametrize("family", ["eurobert", "nomic_bert", "gte"])
@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"rope_theta": 20_000}, "rope_theta is 20000, the recipe makes it"),
        ({"rope_theta": None, "rope_scaling": {"type": "ntk", "factor": 8.0}}, "rope_scaling is {'type': 'ntk'"),
        ({"rope_theta": None}, None),
        ({}, None),
    ],
)
def test_rotations_are_compared_in_transformers_4_s_keys(
    vocab: Path, tmp_path: Path, family: str, theirs: dict, message: str | None
) -> None:
    """Published folders of these families have `rope_theta`, and today's `rope_parameters` not yet. None: ours."""
    vocabulary = read_vocabulary(str(vocab))
    published = random_model(section(family), vocabulary)
    folder = write_hf(published, vocabulary, tmp_path)
    path = folder / "config.json"
    values = json.loads(path.read_text())
    ours = values.pop("rope_parameters")["rope_theta"]
    values |= {key: ours if value is None else value for key, value in theirs.items()}
    path.write_text(json.dumps(values))

    fresh = build_model(section(family), vocabulary.size, 5)
    if message is None:
        assert warm_start(fresh, str(folder), vocabulary) == []
        return
    with pytest.raises(UsageError, match=message):
        warm_start(fresh, str(folder), vocabulary)


class Canary:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_a_pickle_is_refused_and_not_opened(case, tmp_path: Path) -> None:
    canary = tmp_path / "opened"
    only("pytorch_model.bin", pickle.dumps(Canary(canary)))(case.folder)
    with pytest.raises(UsageError, match=r"holds pytorch_model\.bin but no model\.safetensors\. Opening a pickle runs"):
        warm_start(case.fresh, str(case.folder), case.vocabulary)
    assert not canary.exists()


def test_runs_that_begin_with_a_folder(training, case, tmp_path: Path) -> None:
    """Its weights at a learning rate of next to nothing; a resume does not look at it; what is wrong ends the run."""
    shape = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 80, "num_hidden_layers": 4}
    common = {f"model__{name}": value for name, value in shape.items()} | {"optimizer__lr": 1e-12}
    out = tmp_path / "run"
    first_step = {"model__init_from": case.folder, "run__stop_at": 1}
    message = ""
    for changes in (first_step, {"model__init_from": tmp_path / "gone", "run__stop_at": 2}):
        done = training.trained(1, out, **(common | changes))
        message += done.stdout
    assert f"Beginning with the weights of {case.folder}." in message and "Resuming from" in message
    begun = saved(out / "checkpoints/step-00000001")
    for name, weight in state(case.published).items():
        torch.testing.assert_close(begun[name], weight, atol=1e-9, rtol=0)
    done = training.warm(1, tmp_path / "refused", **(common | first_step | {"model__num_hidden_layers": 3}))
    assert done.returncode == 2 and "num_hidden_layers is 4, the recipe makes it 3" in done.stderr
    assert not (tmp_path / "refused" / "metrics.jsonl").exists() and "Traceback" not in done.stderr


@pytest.mark.parametrize("spare", [0, 8])
def test_a_folder_without_a_masked_lm_head_begins_at_the_frequencies_of_its_tokens(
    training, vocab: Path, tmp_path: Path, spare: int
) -> None:
    """Encoders of sentence-transformers have no head. A drawn one alone would begin above the loss of guessing."""
    vocabulary = read_vocabulary(str(vocab))
    rows = f"vocab_size={vocabulary.size + spare}"
    published = random_model(section("bert", rows), vocabulary)
    folder = write_hf(published, vocabulary, tmp_path / "hf")
    shutil.copy(vocab / "tokenizer.json", folder)
    rewrite(folder, LAYOUTS["bare encoder"][0])

    changes = dict(f"model.{size}".split("=") for size in (*SIZES, rows))
    out = tmp_path / "run"
    done = training.trained(1, out, model__init_from=folder, optimizer__lr=1e-12, run__stop_at=1, **changes)
    assert (
        "They lack mlm_head, pair_head, which start from random weights, except that masked tokens are first "
        "predicted from how frequent they are in data.pairs." in done.stdout
    )

    # Spare rows stand for no token, so they begin as tokens that never occur.
    counts_V = torch.tensor(json.loads((out / "unigram.json").read_text())["counts"] + [0] * spare)
    bias_V = saved(out / "checkpoints/step-00000001")["mlm_head.bias"]
    # Close to the loss of word frequencies, and not far above that of guessing.
    first = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert first["mlm_loss"] < first["unigram_loss"] + 1
    torch.testing.assert_close(bias_V, ((counts_V + 1) / (counts_V + 1).sum()).log(), atol=1e-4, rtol=0)

    assert "checked" in export(str(out), str(tmp_path / "exported"), 1)
    assert json.loads((tmp_path / "exported/config.json").read_text())["vocab_size"] == vocabulary.size + spare


def test_a_head_without_a_bias_does_not_begin_at_frequencies(training, vocab: Path, tmp_path: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    folder = write_hf(random_model(section("eurobert"), vocabulary), vocabulary, tmp_path / "hf")
    rewrite(folder, lambda t: {n: w for n, w in t.items() if n != "lm_head.weight"})
    changes = dict(f"model.{size}".split("=") for size in (*SIZES, *OWN_SIZES["eurobert"], "family=eurobert"))
    done = training.trained(1, tmp_path / "run", model__init_from=folder, run__stop_at=1, **changes)
    assert "They lack mlm_head, which start from random weights.\n" in done.stdout
