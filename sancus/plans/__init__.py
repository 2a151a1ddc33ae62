"""Plans: factorisations `Â_ij = R_ij S_ij` of every off-diagonal block (docs/design.md, "Mathematics")."""

AUTO = "auto"  # the least rows that a model can use
PLANS: dict[str, str] = {
    "block": "sancus.plans.block:Block",
    "halo": "sancus.plans.halo:Halo",
    "prepost": "sancus.plans.prepost:Prepost",
}


def plan_for(plan: str, *, linear: bool) -> str:
    """The plan that `auto` stands for: sums may cross for a model that only sums, else rows must."""
    if plan != AUTO:
        return plan
    return "prepost" if linear else "halo"
