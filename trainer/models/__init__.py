"""The networks, written for packed batches: sequences lie end to end and no token is padding.

Letters in tensor names: T tokens of a packed batch, S sequences, D width, E width of the embeddings, H heads, R rows of
the last layer that are read, K masked tokens, V vocabulary. Nothing here needs DeepSpeed, pyarrow or pydantic.
"""
