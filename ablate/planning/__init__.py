"""Words and files to a plan: composing, sweep files, expansion, search."""
