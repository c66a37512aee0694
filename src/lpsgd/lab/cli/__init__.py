"""One module for each command, importable without torch so that ``--help`` is instant."""
