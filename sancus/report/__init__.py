"""Reports: run files in, tables and one HTML page out.

Only the standard library is used, so that a report can be made where no run could: on a laptop, from
files that were copied out of a cluster.
"""
