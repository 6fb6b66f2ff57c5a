"""Linear probes: measures how well a linear classifier solves a task from the frozen vectors of each layer."""
