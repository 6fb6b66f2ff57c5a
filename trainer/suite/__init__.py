"""Suites: one table of what encoders are worth on many tasks, `clozeline suite FOLDER... --suite glue --output DIR`.

schema.py, suite_file.py   what a suite is, and how its file is read
encoders.py, plan.py       the encoders that are compared, and the jobs of each
scheduler.py, child.py     runs the jobs in parallel, each in a process of its own
outcomes.py                the scores of all jobs; table.py and report.py show them
minimal_pairs/, probe/     what is measured without fine-tuning
"""
