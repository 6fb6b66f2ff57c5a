"""Compares encoders on many tasks in one table: `clozeline suite FOLDER... --suite glue --output DIR`.

schema.py, suite_file.py   the schema of suite files, and their reader
encoders.py, plan.py       the encoders to compare, and the jobs of each
scheduler.py, child.py     run the jobs in parallel, each in its own process
outcomes.py                collects the scores of all jobs; table.py and report.py present them
minimal_pairs/, probe/     the jobs that score an encoder without fine-tuning it
"""
