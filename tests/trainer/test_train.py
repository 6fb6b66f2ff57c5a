"""Training under its real launchers: resumes are exact, mistakes end with their exit code, nothing good is lost."""

import shutil
from pathlib import Path

import pytest

from tests.conftest import rows
from tests.trainer.conftest import logged
from trainer import report


def test_what_a_run_leaves(straight: Path, pairs: Path) -> None:
    names = {path.name for path in straight.iterdir()}
    assert names == {
        "recipe.toml",
        "metrics.jsonl",
        "ranks.json",
        "starts.jsonl",
        "unigram.json",
        "text_facts.json",
        "report.html",
        "log.txt",
        "tensorboard",
        "checkpoints",
        "vocabulary",
        "lock",
    }
    page = (straight / "report.html").read_bytes()
    assert report.main([str(straight)]) == 0
    assert (straight / "report.html").read_bytes() == page, "the command writes what the training wrote"
    assert [p.name for p in sorted((straight / "checkpoints").iterdir())] == ["step-00000008", "step-00000012"]
    lines = logged(straight)
    assert list(lines[0]) == [
        "step",
        "loss",
        "mlm_loss",
        "mlm_accuracy",
        "pair_loss",
        "pair_accuracy",
        "lr",
        "grad_norm",
        "tokens",
        "tokens_per_second",
        "padding_fraction",
        "loader_stall_fraction",
        "mfu",
        "seconds",
        "step_seconds",
        "slowest_rank",
        "slowest_ratio",
        "peak_memory_bytes",
        "mlm_loss_masked",
        "mlm_loss_kept",
        "mlm_loss_random",
        "mlm_accuracy_masked",
        "unigram_loss",
    ]
    assert [line["step"] for line in lines] == list(range(1, 13))
    assert lines[-1]["mlm_loss"] < lines[0]["mlm_loss"]
    assert [line["lr"] for line in lines][:5] == pytest.approx([0.00075, 0.0015, 0.00225, 0.003, 0.003])


def test_steps_that_were_not_saved_are_told(training, straight: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    shutil.rmtree(out / "checkpoints/step-00000012")
    again = training.trained(1, out)
    assert "steps 9 to 12 were not saved, and are trained again." in again.stdout + again.stderr


def test_the_rates_of_a_line_are_those_of_its_own_steps(straight: Path) -> None:
    """A step is logged while the next one is computed, except for the last, and takes no less than its own time."""
    lines = logged(straight)
    tokens = 0
    for line in lines:
        seconds = (line["tokens"] - tokens) / line["tokens_per_second"]
        assert seconds >= 0.999 * line["step_seconds"], line
        tokens = line["tokens"]
    assert lines[-1]["seconds"] - lines[-2]["seconds"] >= 0.999 * lines[-1]["step_seconds"]


def test_a_resumed_run_equals_the_unbroken_one_to_the_last_bit(training, straight, tmp_path) -> None:
    """Stopped twice, so that a resume of a resume is tried too, and ended by ranks of a launcher."""
    out = tmp_path / "run"
    for stop in (3, 7):
        training.trained(2, out, run__stop_at=stop)
    done = training.run("torchrun", out)
    assert done.returncode == 0, done.stderr
    assert "Resuming from" in done.stdout and "step 7, row 112" in done.stdout
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 12) == training.tensors(straight, 12)


@pytest.mark.thorough
def test_compiled_layers_compute_the_same(training, held_out, tmp_path) -> None:
    """Up to rounding, the dropped-out too; evaluated in batches of other shapes, stopped and resumed."""
    changes = {
        "batch__shape": "fixed",
        "run__max_steps": 8,
        "model__hidden_dropout_prob": 0.0,
        "model__attention_probs_dropout_prob": 0.0,
    }
    changes |= {"evaluation__pairs": held_out, "evaluation__every": 8, "evaluation__batches": 2}
    training.trained(1, tmp_path / "plain", **changes)
    for stop in ({"run__stop_at": 4}, {}):
        logs = {"TORCH_LOGS": "recompiles"}
        done = training.run("python", tmp_path / "compiled", logs, engine__compile="true", **changes, **stop)
        assert done.returncode == 0, done.stderr
        # the parts of a layer once more for the last one, which is read in part; no other shape
        assert done.stderr.count("Recompiling function") == 3
    compiled, plain = (training.losses(tmp_path / out) for out in ("compiled", "plain"))
    assert [line[1] for line in compiled.values()] == pytest.approx([line[1] for line in plain.values()], rel=1e-5)


def test_a_launcher_passes_the_exit_code_on(training, tmp_path) -> None:
    done = training.run("deepspeed", tmp_path / "run", run__max_step=5)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "unknown key run.max_step. Did you mean run.max_steps?" in done.stderr


def test_missing_pairs_are_a_clear_error(training, tmp_path) -> None:
    done = training.warm(2, tmp_path / "run", data__pairs="/none")
    assert done.returncode == 3, done.stderr
    assert "/none holds no finished pairs: it does not exist. Make it" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_another_run_s_checkpoint_is_refused_with_the_differences(training, straight, tmp_path) -> None:
    shutil.copytree(straight, tmp_path / "run")
    before = training.losses(tmp_path / "run")
    changes = {"run__seed": 9, "model__hidden_dropout_prob": 0.2, "batch__global_batch": 32}
    changes |= {"model__num_hidden_layers": 3, "masking__kind": "span"}
    done = training.warm(1, tmp_path / "run", **changes)
    assert done.returncode == 4
    for told in (
        "run.seed was 0, is 9",
        "model.hidden_dropout_prob was 0.1, is 0.2",
        "model.num_hidden_layers was 1, is 3",
        "masking.kind was token, is span",
        "batch.global_batch or batch.global_tokens was 16, is 32",
        "another run.output",
    ):
        assert told in done.stderr
    assert training.losses(tmp_path / "run") == before


def test_a_damaged_checkpoint_is_passed_over(training, straight, tmp_path) -> None:
    out = tmp_path / "run"
    shutil.copytree(straight, out)
    newest = out / "checkpoints/step-00000012/rank-00001.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    done = training.trained(2, out)
    assert "Passed over a checkpoint" in done.stdout and "step 8, row 128" in done.stdout
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 12) == training.tensors(straight, 12)

    for path in (out / "checkpoints").glob("*/state.json"):
        path.unlink()
    done = training.warm(2, out)
    assert done.returncode == 4 and "state.json is missing" in done.stderr and "Traceback" not in done.stderr


BY_TOKENS = {
    "batch__global_batch": "none",
    "batch__micro_batch": "none",
    "batch__global_tokens": 600,
    "batch__micro_tokens": 160,
    "batch__shape": "fixed",
    "masking__kind": "span",
    "masking__final_prob": 0.15,
    "model__hidden_dropout_prob": 0.0,  # its draws depend on the shape
    "model__attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(scope="module")
def sentence_rows(command, text: Path, vocab: Path) -> Path:
    """Pairs without labels: one segment a row."""
    return rows(command, "sentence_rows", text, vocab, "full_sentences")


def test_batches_of_tokens_in_one_shape_from_two_folders(training, pairs, sentence_rows, tmp_path) -> None:
    """Resumed it equals the straight run; filling up to one shape changes the losses by rounding alone."""
    data = {"data__pairs": f'["{pairs}", "{sentence_rows}"]', "data__weights": [0.7, 0.3], **BY_TOKENS}
    for name, changes in (
        ("straight", {}),
        ("stopped", {"run__stop_at": 6}),
        ("stopped", {}),
        ("exact", {"batch__shape": "exact", "run__stop_at": 3}),
    ):
        training.trained(2, tmp_path / name, **(data | changes))
    assert training.losses(tmp_path / "stopped") == training.losses(tmp_path / "straight")
    told = {name: logged(tmp_path / name) for name in ("straight", "exact")}
    assert all(0 < line["padding_fraction"] < 0.5 for line in told["straight"])  # a row is a fifth of a micro-batch
    assert all(line["padding_fraction"] == 0 for line in told["exact"])
    for exact, fixed in zip(told["exact"], told["straight"][:3], strict=True):
        assert fixed["loss"] == pytest.approx(exact["loss"], rel=1e-5)
        assert 0 <= fixed["pair_accuracy"] <= 1


def test_rows_without_labels_have_no_pair_loss(training, sentence_rows, tmp_path) -> None:
    training.trained(1, tmp_path / "run", run__stop_at=2, data__pairs=sentence_rows)
    for line in logged(tmp_path / "run"):
        assert line["pair_loss"] is None and line["loss"] == line["mlm_loss"] > 0
