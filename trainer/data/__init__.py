"""Batches as a pure function of (data, seed, step).

`fit` says whether pairs are for a model. `order` says which rows make up a global batch, `folder` reads them from pair
shards (`rows`), `share` divides them among ranks and micro-batches, `batches` packs them for the model, and `stream`
does all of this ahead of time. `shared` and `remote` let the ranks of a node decode and download each shard once,
through files of `node_cache`. `counts` counts tokens for starting weights and for the baseline of the loss.
"""
