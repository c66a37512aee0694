"""The laboratory as Python functions; the commands call them, too.

`lpsgd.lab` offers them by name: compare, sweep, train, suggest, spectrum.
"""
