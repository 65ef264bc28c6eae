"""What a command would run, before it runs: jobs, downloads, memory, time. No weights are loaded, no network is used."""
