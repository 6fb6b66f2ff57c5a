"""The networks, written for packed batches: sequences lie end to end, and no token is padding.

Shape suffixes in tensor names: T tokens of a packed batch, S sequences, D hidden size, E embedding size, H heads, R
rows of the last layer that are computed, K masked tokens, V vocabulary. Nothing here needs DeepSpeed, pyarrow or
pydantic.
"""
