"""The store: constant rows that are spread over ranks, and pulled by number when a batch needs them."""

CACHES: dict[str, str] = {
    "vip": "sancus.store.vip:Vip",
    "degree": "sancus.store.degree:Degree",
}
NO_CACHE = "none"
