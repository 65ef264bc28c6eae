"""Measurements of the harness itself, each one command."""
