"""Input that nobody meant: files, command lines and data at random, and kills at random moments."""
