"""The options of commands that have many."""
