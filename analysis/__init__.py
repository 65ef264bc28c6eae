"""Command-line reports over results folders; each is thin and calls `talon_bench.report`."""
