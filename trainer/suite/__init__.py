"""Suites: encoders compared on many tasks in one table, `clozeline suite FOLDER... --suite glue --output DIR`.

schema.py, suite_file.py   what a suite is, and how its file is read
encoders.py, plan.py       the encoders that are compared, and the jobs of each
scheduler.py, child.py     run the jobs in parallel, each in its own process
outcomes.py                collects the scores of all jobs; table.py and report.py show them
minimal_pairs/, probe/     the jobs that measure an encoder without fine-tuning it
"""
