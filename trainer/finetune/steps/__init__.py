"""Adaptation before fine-tuning: continued pretraining of a general encoder on a domain's text and the task's text."""
