"""Share what several files of tests build, start, kill and read; a module each subject."""
