"""Command-line steps that check data sets and make the embedded target: `python -m data_prep --help`."""
