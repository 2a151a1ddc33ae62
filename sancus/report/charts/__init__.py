"""The charts of a report, a few in each module: runs in, charts out; an empty list where data is missing."""
