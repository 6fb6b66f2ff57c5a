"""Pair shards to a pretrained encoder: streams rows, masks them as it goes, trains with DeepSpeed, resumes exactly.

    recipe -> stream -> models -> training (engine, metrics, checkpoints) -> export

`python -m trainer`, `torchrun -m trainer` and `deepspeed --module trainer` are the same program.
"""
