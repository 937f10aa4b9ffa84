"""Helpers of the programs in tools/; none of them is a program."""
