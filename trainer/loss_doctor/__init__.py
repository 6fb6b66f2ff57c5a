"""Tells a run whose loss stays where word frequencies alone lead, and why that is likely.

examiner.py          examines a phase while it trains
examination.py       when a run is examined, and what is measured for it
causes.py            which cause the measurements point to, and what to do about it
effective_rank.py    whether the model gives the same vector everywhere
"""
