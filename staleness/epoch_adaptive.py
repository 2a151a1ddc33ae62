"""Policy `epoch-adaptive`: owners take turns (SANCUS Definition 2, Algorithm 5)."""

from __future__ import annotations

from dataclasses import dataclass

from .base import SEND, SKIP, Answer, Bounded, View


@dataclass(frozen=True)
class EpochAdaptive(Bounded):
    """An owner sends when a receiver that needs its block would hold one older than `bound`.

    Algorithm 5 loops over the versions `Ver_i(j)` that worker `i` holds; the first `j` with
    `Ver − Ver_i(j) > ε_A` becomes ACTIVE and the procedure ends "for P(j)". How we read it:

    - *The early end* ends the check for owner `j`, not the loop: in Figure 14(b) two workers (3 and 4) become
      ACTIVE in the same epoch.
    - *In-coming neighbours* of `i` are the owners `j` with a nonzero block `Â_ij`; an owner that nobody
      needs never sends again after its first use.
    - The paper checks after an epoch and sends in the next, which lets an age reach `ε_A + 1` (Figure 14(b):
      `H_{2,7}` is used in epoch 9); we check before use, so that no age passes the bound (Definition 2's
      promise).
    - All owners start together, in the first epoch. Left alone they would stay in step, which is
      `epoch-fixed`. So in the first round owner `j` refreshes early, after `j mod (bound + 1)` epochs;
      from then on ages alone spread the sends: between ⌊p/(A+1)⌋ and ⌈p/(A+1)⌉ an epoch and layer.
    """

    def decide(self, view: View) -> Answer | bool:
        """SEND when the history is too old, or when it is this owner's turn in the first round."""
        if not view.needed:
            return SKIP
        if view.age > self.bound:
            return SEND
        first_round = view.age == view.since_first
        return first_round and view.since_first == view.owner % (self.bound + 1)
