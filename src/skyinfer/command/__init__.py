"""The command line: main.py has the parser and the exit codes, and each subcommand a module of its own."""
