"""Sancus in a program: the verbs of the command line as calls, on local ranks too."""
