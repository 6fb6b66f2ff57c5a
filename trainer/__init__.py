"""Clozeline's trainer of encoders on pair shards: streams and masks rows, trains with DeepSpeed, and resumes exactly.

    recipe -> data stream -> model and engine -> training loop (metrics, checkpoints) -> export

`python -m trainer`, `torchrun -m trainer` and `deepspeed --module trainer` start the same program.
"""
