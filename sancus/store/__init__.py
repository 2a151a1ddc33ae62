"""The store: constant rows that are spread over ranks, and pulled by number when a batch needs them."""
