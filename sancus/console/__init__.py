"""What a person sees while something runs."""
