"""The jobs as commands: what is checked before they start, and how their work is planned."""

from pipeline.runtime.beam_import import import_beam

import_beam()  # before the modules here import parts of it
