"""How an export is written, as the command line says. This module imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_SHARD_GIGABYTES = 5.0
"""The default of transformers' save_pretrained, in units of 10^9 bytes."""


@dataclass(frozen=True)
class Writing:
    """How an export is written.

    overwrite: an earlier export may be replaced. max_shard_bytes: the maximum bytes of weights in a file. average: the
    number of last checkpoints whose weights are averaged; 1 exports a single checkpoint.
    """

    overwrite: bool = False
    max_shard_bytes: int = int(DEFAULT_SHARD_GIGABYTES * 10**9)
    average: int = 1
