"""The jobs as commands: checks before they start, and plans of their work."""

from pipeline.beam.internals import import_beam

import_beam()  # before the modules here import parts of it
