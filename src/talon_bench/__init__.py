"""talon_bench: a reproducible benchmark harness for tree-based speculative decoding of large language models."""

__version__ = "0.1.0"
