"""Text shards to word counts to a vocabulary.

`pretokenize` cuts text into words; `runs`, `cut_runs` and `counting` count them on workers; `rare_words` says whether
they fit into memory; `train` (with `words` and `bpe`) trains the tokens; `statistics` says what the vocabulary does to
its text; and `tokenizer_files` writes what other libraries load.
"""
