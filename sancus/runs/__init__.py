"""A run: built, trained, written down, resumed, predicted from, compared."""
