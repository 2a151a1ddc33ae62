"""Reports: run files in, tables and one HTML page out.

No torch is imported, so that a report can be made where no run could: on a laptop, from files that were
copied out of a cluster.
"""
