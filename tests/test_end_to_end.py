"""Runs a smaller `make demo`: real text, real launchers, SIGKILL halfway through, resume, export, filled blanks."""

import json
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_the_demo(run, tmp_path: Path) -> None:
    shrunk = (
        "run.max_steps=60",
        "checkpoint.every=10",
        "evaluation.every=30",
        "run.log_every=1",
        "schedule.warmup_steps=20",
        "model.hidden_size=64",
    )
    changes = [part for change in shrunk for part in ("--set", change)]

    # No compiler: whatever two ranks would build at their first start, they could not.
    extensions = tmp_path / "extensions"
    no_compiler = {"CC": "no-compiler", "CXX": "no-compiler", "TORCH_EXTENSIONS_DIR": str(extensions)}
    out = tmp_path / "my demo"
    words = ["-m", "clozeline", "demo", "--output", out, "--megabytes", "1", *changes]
    done = run("python", *words, timeout=500, **no_compiler)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Traceback" not in done.stderr and not extensions.exists()
    told = done.stdout
    assert "killed with SIGKILL" in told and "Resuming from" in told
    taken_twice = int(told.split(" logged.")[0].split(" ")[-1])
    assert taken_twice > 0
    assert f"{taken_twice} of {taken_twice}" in told
    assert told.count("%   ") == 7 * 3  # word frequencies and six blanks, four words each
    for name in ("pairs/card.html", "run/report.html", "hf/config.json", "hf/model.safetensors", "hf/tokenizer.json"):
        assert (out / name).stat().st_size > 0
    assert "Blanks, filled in after step 60" in (out / "run/report.html").read_text()
    logged = [json.loads(line) for line in (out / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged if "eval_mlm_loss" in line] == [30, 60]
    lines = [line for line in logged if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, 61))
    assert lines[0]["mlm_loss"] - lines[-1]["mlm_loss"] > 1
