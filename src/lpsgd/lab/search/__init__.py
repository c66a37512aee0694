"""Search the optimizers' settings: equal trials for each, chosen on the validation split.

space, space_file   what may be chosen, and how a TOML file says it
proposals           which trials to run next: optuna, as a pure function of the scores so far
definition          one sweep: space, search and recipe, kept as sweep.json
storage             where trials are kept, and who works on which
trials              the trials of one sweep in that storage
run                 run what the search asks for until it is satisfied
outcome             winners, and how wide the region of good learning rates is
report              figures, tables, the page; the winners as recipes
"""
