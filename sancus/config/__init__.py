"""Settings, presets, and the one way from flags to a `Config`."""
