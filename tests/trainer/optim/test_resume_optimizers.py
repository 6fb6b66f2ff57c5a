"""A run by LAMB or StableAdamW continues exactly after a stop, on other numbers of ranks and ZeRO stages as well."""

from pathlib import Path

import pytest

STEPS = 6
PLAIN = {
    "model__hidden_dropout_prob": 0.0,  # dropout is drawn per rank
    "model__attention_probs_dropout_prob": 0.0,
    "run__max_steps": STEPS,
    "checkpoint__every": 99,
    "optimizer__lr": 1e-3,
}


@pytest.mark.parametrize("kind", ["lamb", "stable_adamw"])
def test_a_stopped_run_goes_on_in_another_layout(training, tmp_path: Path, kind: str) -> None:
    """Stage 1 on two ranks in float32; to the last bit there, elsewhere up to the order of summation."""
    base = PLAIN | {"optimizer__kind": kind, "engine__zero_stage": 1}

    def go(out: Path, ranks: int, **changes: object) -> dict[int, tuple]:
        done = training.warm(ranks, out, **base | changes)
        assert done.returncode == 0, done.stderr
        return training.losses(out)

    expected = go(tmp_path / "straight", 2)
    assert expected[STEPS][1] < expected[1][1] - 0.03, "it learns"
    for name in ("same", "1 2", "2 0"):
        go(tmp_path / name, 2, run__stop_at=3)

    assert go(tmp_path / "same", 2) == expected
    assert training.tensors(tmp_path / "same", STEPS) == training.tensors(tmp_path / "straight", STEPS)

    worst = 0.0
    for ranks, stage in ((1, 2), (2, 0)):
        found = go(tmp_path / f"{ranks} {stage}", ranks, engine__zero_stage=stage)
        assert list(found) == list(expected)
        worst = max([worst, *(abs(line[1] / expected[step][1] - 1) for step, line in found.items())])
    print(f"{kind}: losses differ by {worst:.1e} at most")
    assert worst < 1e-5
