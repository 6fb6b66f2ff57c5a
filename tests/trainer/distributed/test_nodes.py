"""Several nodes by DeepSpeed's hostfile, its launcher started once a node, here both on one machine."""

import socket
from pathlib import Path

import pytest


def on_two_nodes(training, hostfile: Path, outputs: tuple[Path, Path]) -> list[tuple[int, str]]:
    """(exit code, what it printed) of each node's launcher."""
    hostfile.write_text("node-1 slots=1\nnode-2 slots=1\n")
    launchers = [training.start("one node", out, hostfile=hostfile, node=node) for node, out in enumerate(outputs)]
    told = [launcher.communicate()[0] for launcher in launchers]
    return [(launcher.returncode, text) for launcher, text in zip(launchers, told, strict=True)]


@pytest.mark.thorough
def test_a_run_on_two_nodes_equals_one_on_one(training, straight, tmp_path) -> None:
    out = tmp_path / "run"
    for code, told in on_two_nodes(training, tmp_path / "hostfile", (out, out)):
        assert code == 0, told
    assert training.losses(out) == training.losses(straight)
    assert training.tensors(out, 12) == training.tensors(straight, 12)


@pytest.mark.thorough
def test_a_port_that_another_run_has_is_named(run, training, tmp_path) -> None:
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        launcher = ("deepspeed", "--quiet", "--num_gpus", "2", "--master_port", port, "--module", "trainer")
        done = run(*launcher, *training.flags(tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f":{port} (" in done.stderr and "give the launcher another one: --master_port" in done.stderr


@pytest.mark.thorough
def test_nodes_that_share_no_folder_are_told(training, tmp_path) -> None:
    (first, told), (second, _) = on_two_nodes(training, tmp_path / "hostfile", (tmp_path / "a", tmp_path / "b"))
    assert (first, second) == (2, 2), told
    assert "Rank 1 on " in told and "does not see" in told and "give one that all machines share" in told
    assert "Traceback" not in told and not (tmp_path / "a").exists()
