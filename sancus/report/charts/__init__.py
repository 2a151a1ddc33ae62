"""The charts of a report, one a module: groups of runs, or one run, in; charts out, none where data lacks."""
