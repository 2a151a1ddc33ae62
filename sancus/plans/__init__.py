"""Plans: factorisations `Â_ij = R_ij S_ij` of every off-diagonal block (docs/design.md, "Mathematics")."""

AUTO = "auto"  # the least rows that a model can use
PLANS: dict[str, str] = {
    "block": "sancus.plans.block:Block",
    "halo": "sancus.plans.halo:Halo",
    "prepost": "sancus.plans.prepost:Prepost",
    "drawn": "sancus.plans.drawn:Drawn",
}


def plan_for(plan: str, *, linear: bool) -> str:
    """The plan that `auto` stands for: sums may cross for a model that only sums, else rows must."""
    if plan != AUTO:
        return plan
    return "prepost" if linear else "halo"


def changes(plan: object) -> bool:
    """Whether a plan, or its class, sends other rows in every epoch: see `sancus.plans.base.ChangingPlan`."""
    return callable(getattr(plan, "at", None))
