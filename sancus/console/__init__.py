"""The console: progress lines for a person while something runs (`sancus.console.speaker`)."""
