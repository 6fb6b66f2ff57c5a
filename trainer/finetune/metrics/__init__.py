"""The metrics of tasks. Each is a fraction between -1 and 1, and larger is better.

metric_table.py   the metrics by name, with the kinds of tasks that each one applies to
answers.py        the rules of SQuAD's and CMRC 2018's evaluation scripts, and the threshold for "no answer"
chunks.py         F1 of chunks (names, phrases), as conlleval counts them
"""
