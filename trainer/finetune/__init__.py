"""Fine-tunes an encoder on a labeled task."""
