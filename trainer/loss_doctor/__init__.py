"""Detects a loss that is stuck at the baseline, the loss of word frequencies alone, and names the likely cause.

examiner.py          examines a phase while it trains
examination.py       when a run is examined, and what is measured for it
causes.py            which cause the measurements point to, and what to do about it
effective_rank.py    whether the model gives the same vector everywhere
"""
