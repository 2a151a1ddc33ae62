"""The engine of all experiments: settings in, runs, results as JSON, tables."""
