"""Steps of adaptation before fine-tuning: a general encoder, its domain's text, its task's text, the task."""
