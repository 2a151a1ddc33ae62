"""Metrics: every figure declared once, with its unit and meaning; JSON lines out."""
