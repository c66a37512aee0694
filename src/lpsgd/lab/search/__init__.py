"""Search the optimizers' settings: equal trials for each, chosen on the validation split.

space      what may be chosen, from TOML
search     which trials to run next: optuna, as a pure function of the scores so far
storage    where trials are kept, and who works on which
ledger     the trials of one sweep in that storage
work       run what the search asks for until it is satisfied
outcome    winners, and how wide the region of good learning rates is
report     figures, tables, the page
"""
