"""The command line: verbs, flags, and how a process of ours ends."""
