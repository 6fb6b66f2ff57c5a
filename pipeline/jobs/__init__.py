"""The jobs on Beam: options, plan, graph, what workers do, and publication, in a module for each job."""

from pipeline.beam.internals import import_beam

import_beam()  # before the modules here import parts of it
