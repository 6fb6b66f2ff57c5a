"""The networks, written for packed batches: sequences are laid end to end without padding between them.

Shape suffixes in tensor names: T tokens of a packed batch, S sequences, D hidden size, E embedding size, H heads, R
rows of the last layer that are computed, K masked tokens, V vocabulary. Nothing here needs DeepSpeed, pyarrow or
pydantic.
"""
