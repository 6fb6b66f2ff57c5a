"""Fine-tuning of an encoder's folder on a task file: `clozeline finetune FOLDER --task TASK.toml --output DIR`."""
