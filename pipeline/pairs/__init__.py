"""Turns text shards and a vocabulary into pair shards.

`encoding` turns sentences into token ids, `nsp_sop` or `full_sentences` chooses the sentences of each row, `layout`
writes rows as Arrow columns, `static_masks` adds stored masks, and `build_shard` calls them in this order.
"""
