"""What a model will cost, told before it is built, against what it costs when it is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from schemas.errors import DataError, UsageError
from schemas.manifest import read_manifest
from schemas.vocabulary import read_vocabulary
from tests.small_models import random_model
from trainer.cli import main
from trainer.config.load import load_recipe, recipe_comment, recipe_names
from trainer.config.schema import Recipe
from trainer.describe import activation_bytes, describe_recipe, state_bytes
from trainer.export.verify import one_row_batch
from trainer.models.families import encoder_shape
from trainer.models.flops import flops_per_token

TINY = "tests/recipes/small_bert.toml"
RECIPES = [name for name in recipe_names() if "H100" in recipe_comment(name, "Hardware")]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_described_without_pairs(capsys, name: str) -> None:
    assert main(["--config", f"trainer/recipes/{name}.toml", "--describe"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["parameters"] > told["parameters_without_heads"] > 0
    assert told["bytes_per_rank"]["zero_0"]["1"] == 18 * told["parameters"]
    # Embeddings are looked up, not multiplied with; only where a token was masked does the head multiply with them.
    model = load_recipe(f"trainer/recipes/{name}.toml", []).model
    embeddings = told["vocabulary"] * (model.embedding_size or model.hidden_size)
    assert told["flops_per_token"] > 6 * 0.7 * (told["parameters_without_heads"] - embeddings)
    assert told["activation_bytes_per_token"] > model.num_hidden_layers * model.hidden_size


def test_bert_large_s_figures_are_the_published_ones() -> None:
    """240.5 and 1,020 GFLOPs a sequence: 272 and 52 of them a second are DeepSpeed's record of 64 and 53 TFLOPs."""
    shape = encoder_shape(load_recipe("trainer/recipes/bert_large.toml", []).model, 30_522)
    assert flops_per_token(shape, 128, 0.15) * 128 == pytest.approx(240.5e9, rel=1e-3)
    assert flops_per_token(shape, 512, 0.15) * 512 == pytest.approx(1020e9, rel=1e-3)


def test_what_layers_keep_is_about_what_was_told(vocab: Path) -> None:
    vocabulary = read_vocabulary(str(vocab))
    recipe = load_recipe(
        TINY,
        [
            "model.hidden_size=48",
            "model.num_attention_heads=3",
            "model.num_hidden_layers=4",
            "model.intermediate_size=192",
        ],
    )
    model = random_model(recipe.model, vocabulary).train()
    batch = one_row_batch(torch.randint(5, vocabulary.size, (128,)), 2)
    parameters = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        losses = model.encoder(batch).sum()
    told = activation_bytes(model.shape, recipe) - recipe.masking.prob * vocabulary.size * 12
    assert told * batch.tokens == pytest.approx(sum(kept.values()), rel=0.25)
    assert losses.isfinite()


def test_masks_that_grow_are_counted_at_their_largest() -> None:
    base = ["data.pairs=/none", "model.vocab_size=500"]
    shape = encoder_shape(load_recipe(TINY, base).model, 500)
    rising = load_recipe(TINY, [*base, "masking.prob=0.15", "masking.final_prob=0.4"])
    assert activation_bytes(shape, rising) == activation_bytes(shape, load_recipe(TINY, [*base, "masking.prob=0.4"]))


def test_each_stage_spreads_more_over_the_ranks() -> None:
    assert [state_bytes(1000, "fp32", stage, 8) for stage in range(4)] == [16_000, 9_000, 5_500, 2_000]
    assert [state_bytes(1000, "bf16", stage, 8) for stage in range(4)] == [7_500, 7_500, 4_000, 2_250]
    assert {state_bytes(1000, "bf16", stage, 1) for stage in range(4)} == {18_000}
    assert state_bytes(1000, "bf16", 1, 8, offloaded=True) == 6_000


def test_the_vocabulary_is_the_recipe_s_or_the_pairs_s(pairs: Path) -> None:
    assert describe_recipe(load_recipe(TINY, [f"data.pairs={pairs}"]))["vocabulary"] == 160
    assert describe_recipe(load_recipe(TINY, ["data.pairs=/none", "model.vocab_size=500"]))["vocabulary"] == 500
    with pytest.raises(UsageError, match=r"/none does not exist, so .*--set model\.vocab_size"):
        describe_recipe(load_recipe(TINY, ["data.pairs=/none"]))


def test_pairs_that_are_not_there_are_named_by_their_absolute_path(tmp_path: Path, monkeypatch) -> None:
    """Paths of a recipe are those of the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"^{tmp_path}/out/pairs does not exist, so"):
        describe_recipe(load_recipe("tiny", []))
    (tmp_path / "out/pairs").mkdir(parents=True)
    with pytest.raises(UsageError, match=f"^{tmp_path}/out/pairs holds no finished pairs yet, so"):
        describe_recipe(load_recipe("tiny", []))


def test_lengths_are_those_of_the_rows(pairs: Path) -> None:
    """Of the pairs when there are some, else the recipe's data.max_length; not model.max_position_embeddings."""
    recipe = load_recipe(TINY, [f"data.pairs={pairs}", "model.max_position_embeddings=512"])
    described = describe_recipe(recipe)
    manifest = read_manifest(str(pairs), "pairs")
    assert described["length"] == manifest.options["max_length"] < 512
    assert (described["rows"], described["tokens"]) == (manifest.totals["rows"], manifest.totals["tokens"])
    assert "unfinished" not in described
    assert described["micro_batch_tokens"] == 16 * described["length"]
    assert described["activation_bytes"] == described["micro_batch_tokens"] * described["activation_bytes_per_token"]
    told = describe_recipe(
        load_recipe(TINY, ["data.pairs=/none", "model.vocab_size=160", "model.max_position_embeddings=512"])
    )
    assert told["length"] == 512 and told["flops_per_token"] > described["flops_per_token"]
    assert (told["rows"], told["unfinished"]) == (0, ["/none does not exist"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.vocab_size=30522"], "has a vocabulary of 160 tokens, but model.vocab_size is 30522"),
        (["model.family=roberta"], "padding token is id 0, expected 1"),
        (["model.max_position_embeddings=16"], "rows of up to 32 tokens, but model.max_position_embeddings is 16"),
    ],
)
def test_finished_pairs_that_training_refuses_are_refused(pairs: Path, changes: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        describe_recipe(load_recipe(TINY, [f"data.pairs={pairs}", *changes]))


def test_rows_of_a_later_phase_must_fit_the_positions(pairs: Path) -> None:
    """Those of its pairs if they are finished, else its data.max_length."""
    planned = ["data.pairs=/none", "model.vocab_size=50368", "model.max_position_embeddings=1024"]
    with pytest.raises(UsageError, match=r"phase 2: data\.max_length 8192 is more than model\.max_position_embeddings"):
        describe_recipe(load_recipe("modernbert_base", planned))
    assert describe_recipe(load_recipe("modernbert_base", [*planned, "phases=none"]))["length"] == 1024


TWO_PHASES = """
[[phases]]
steps = 20
data = {{ max_length = {first} }}

[[phases]]
steps = 10
data = {{ max_length = {second} }}
"""


def two_phases(folder: Path, first: int, second: int) -> Recipe:
    """TINY with two phases that differ in the length of their rows."""
    path = folder / f"{first}_{second}.toml"
    path.write_text(Path(TINY).read_text() + TWO_PHASES.format(first=first, second=second))
    wanted = ["data.pairs=/none", "model.vocab_size=500", "model.max_position_embeddings=512"]
    return load_recipe(str(path), [*wanted, "run.max_steps=30", "schedule.warmup_steps=10"])


def test_memory_is_that_of_the_phase_that_needs_most(tmp_path: Path) -> None:
    rising, falling = (describe_recipe(two_phases(tmp_path, *lengths)) for lengths in ((128, 512), (512, 128)))
    assert [(phase["steps"], phase["length"]) for phase in rising["phases"]] == [(20, 128), (10, 512)]
    assert rising["phases"][0]["flops_per_token"] < rising["phases"][1]["flops_per_token"]
    shared = rising.keys() - {"phases"}
    assert {name: rising[name] for name in shared} == {name: falling[name] for name in shared}
    assert rising["length"] == 512 and rising["micro_batch_tokens"] == 16 * 512
    assert "phases" not in describe_recipe(load_recipe(TINY, ["data.pairs=/none", "model.vocab_size=500"]))


def test_the_memory_of_a_rank_is_one_sum() -> None:
    """At the recipe's ZeRO stage: state, buffers, activations, and what the backward pass takes in addition."""
    described = describe_recipe(load_recipe(TINY, ["data.pairs=/none", "model.vocab_size=500"]))
    for ranks in ("1", "8"):
        parts = described["bytes_per_rank"]["zero_1"][ranks] + described["bucket_bytes"] + described["activation_bytes"]
        assert parts < described["memory_bytes"][ranks] < 2 * parts
    chosen = ["batch.micro_batch=none", "batch.micro_tokens=auto"]
    described = describe_recipe(load_recipe(TINY, ["data.pairs=/none", "model.vocab_size=500", *chosen]))
    assert described["memory_bytes"] is None


@pytest.mark.parametrize(("name", "length"), [("bert_base", 128), ("bert_large_lamb", 512), ("roberta_base", 512)])
def test_recipes_are_described_by_the_rows_they_train_on(name: str, length: int) -> None:
    assert describe_recipe(load_recipe(f"trainer/recipes/{name}.toml", []))["length"] == length


def test_the_buffers_of_a_reduction_are_described() -> None:
    """A gigabyte or two at stage 2 however small the model is, or what [deepspeed] asks for.

    Below stage 2, bf16 reduces gradients where they are summed. Stage 3 also gathers weights.
    """
    base = ["data.pairs=/none", "model.vocab_size=500", "engine.precision=bf16"]
    parameters = describe_recipe(load_recipe(TINY, base))["parameters"]
    found = {stage: describe_recipe(load_recipe(TINY, [*base, f"engine.zero_stage={stage}"])) for stage in (1, 2, 3)}
    assert found[1]["bucket_bytes"] == 0
    assert found[2]["bucket_bytes"] == 4 * parameters + 2 * 500_000_000
    assert found[3]["bucket_bytes"] == found[2]["bucket_bytes"] + 2 * parameters
    in_float32 = describe_recipe(load_recipe(TINY, [*base[:2], "engine.precision=fp32", "engine.zero_stage=1"]))
    assert in_float32["bucket_bytes"] == 4 * parameters
    own = [*base, "engine.zero_stage=2", "deepspeed.zero_optimization.reduce_bucket_size=1000"]
    assert describe_recipe(load_recipe(TINY, own))["bucket_bytes"] == 6 * 1000


def test_describing_imports_nothing_that_trains_and_needs_no_stdout() -> None:
    code = (
        "import sys; from trainer.cli import main\n"
        "out, sys.stdout = sys.stdout, None  # as after `>&-`\n"
        "assert main(['--config', 'trainer/recipes/bert_base.toml', '--describe']) == 0\n"
        "sys.stdout = out\n"
        "print([name for name in ('deepspeed', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
