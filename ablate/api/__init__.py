"""What Python code calls: the nouns, and training a sweep. The command line is a client of it."""
