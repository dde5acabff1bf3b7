"""The command line: one subcommand per file, listed in `catalog`."""
