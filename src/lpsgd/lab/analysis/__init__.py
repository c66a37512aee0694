"""What the runs mean: statistics, verdicts and learning curves."""
