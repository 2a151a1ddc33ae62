"""Who is everybody waiting for: ranks tell what they do, outside all collectives, so a stall has a name."""
