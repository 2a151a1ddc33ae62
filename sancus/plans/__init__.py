"""Plans: factorisations `Â_ij = R_ij S_ij` of every off-diagonal block (design §2)."""

PLANS: dict[str, str] = {
    "block": "sancus.plans.block:Block",
    "halo": "sancus.plans.halo:Halo",
    "prepost": "sancus.plans.prepost:Prepost",
}
