"""Makes draft heads for a target: prompts, the target's own answers, features in shards, training, export (docs/training.md)."""
