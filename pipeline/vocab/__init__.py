"""Turns text shards into word counts, and word counts into a vocabulary.

`pretokenize` cuts text into words; `runs`, `cut_runs` and `counting` count them on workers; `rare_words` determines
whether they fit into memory; `train` (with `words` and `bpe`) trains the tokens; `statistics` describes how the
vocabulary encodes its text; and `tokenizer_files` writes what other libraries load.
"""
