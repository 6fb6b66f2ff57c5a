"""The networks, written for packed batches: sequences lie end to end and no token is padding.

Letters in tensor names: T tokens of a packed batch, S sequences, L the longest of them, D width, H heads, K masked
tokens, V vocabulary.
"""
