"""Batches as a pure function of (data, seed, step).

`sampler` says which rows make up a global batch, `dataset` reads them from pair shards, `loader` divides them among
ranks and micro-batches, and `collate` packs them for the model.
"""
