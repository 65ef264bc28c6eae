"""Command-line steps that fetch and check data sets and make the embedded target: `python -m data_prep --help`."""
