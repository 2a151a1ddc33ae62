"""Who am I among the ranks, and how local ranks are started, watched and ended."""
