"""The contract between Sancus and a model, for ours and for the user's own. Imports no torch.

What a model's constructor is called with:

- A constructor with an argument named `settings` gets `features`, `classes` and all `ModelSettings`: ours.
- Any other gets features, hidden width and classes as its first three arguments, and, by name, every setting
  of `ModelSettings` that it asks for (or all of them, if it takes `**settings`).

Further arguments are the model's own settings: `--model my_file.py:Net:rate=0.3`.

What a model says of itself is `GraphModel`; `normalisation_of` and `traits_of` are the places that read it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from sancus.errors import UserError
from sancus.models.settings import ModelSettings
from sancus.plugins import choices

if TYPE_CHECKING:
    import torch

    from sancus.kernels.summed import Rowlike
    from sancus.models.neighbourhood import Neighbourhood

Normalisation = Literal["symmetric", "mean", "sum"]
NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
ANYTHING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
SHAPE = ("features", "hidden", "classes")


State = tuple["Rowlike", ...]  # the rows [n_i, ·] that go from one segment to the next
Segment = Callable[[State, "Neighbourhood"], State]


class GraphModel(Protocol):
    """What a model may say of itself; `forward` is all that it must have."""

    normalisation: Normalisation  # which `Â` it wants; left out: symmetric
    linear: bool  # it only sums neighbours, so that sums of rows may be sent for it; left out: False
    shrinks: bool  # it takes `targets` of what it adds to sums over neighbours; left out: False
    widths: Sequence[int] | None  # `f_0 … f_L` of layers that propagate once each, to predict bytes from

    def forward(self, x: Rowlike, exchange: Neighbourhood) -> torch.Tensor:
        """Features `[n_i, F]` to logits `[n_i, C]` of the wanted rows."""
        ...

    def embed(self, x: Rowlike, exchange: Neighbourhood) -> tuple[torch.Tensor, torch.Tensor]:
        """Last embeddings `[n_i, f]` and logits `[n_i, C]`; left out: a prediction has no embeddings."""
        ...

    def segments(self) -> Sequence[Segment]:
        """The model cut in pieces that may run in different places, for pipelines; left out: it has none.

        Run in order, the first on `(x,)`, each on what the one before it gave, the last gives `(logits,)`,
        the same as `forward`. Each graph layer is a piece, and there may be more before and after them.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a model says of itself, as it was read; None where it says nothing."""

    linear: bool
    shrinks: bool
    widths: Sequence[int] | None
    embed: Callable[[Rowlike, Neighbourhood], tuple[torch.Tensor, torch.Tensor]] | None
    segments: Callable[[], Sequence[Segment]] | None


def filled_arguments(target: Callable[..., Any]) -> frozenset[str]:
    """The constructor arguments that a user cannot set in a spec, because Sancus fills them."""
    parameters = inspect.signature(target).parameters
    if _takes_settings(parameters):
        return frozenset({"features", "classes", "settings"})
    fields = {field.name for field in dataclasses.fields(ModelSettings)}
    return frozenset(_shape_arguments(parameters)) | (fields & set(parameters))


def construct(
    target: Callable[..., Any],
    features: int,
    classes: int,
    settings: ModelSettings,
    own: Mapping[str, Any] | None = None,
) -> Any:
    """Call a model's constructor; `own` are the settings of its spec."""
    parameters = inspect.signature(target).parameters
    if _takes_settings(parameters):
        return target(features=features, classes=classes, settings=settings, **(own or {}))
    shape = _shape_arguments(parameters)
    if len(shape) < len(SHAPE):
        raise UserError(
            f"model {_name(target)}: the constructor takes {len(shape)} positional arguments; it must take "
            f"{len(SHAPE)}: the number of features, the hidden width, the number of classes"
        )
    fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
    everything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    by_name = {
        name: value
        for name, value in fields.items()
        if name not in shape and name != "hidden" and (everything or name in parameters)
    }
    return target(features, settings.hidden, classes, **by_name, **(own or {}))


def normalisation_of(model: object) -> Normalisation:
    """Which `Â` a model wants, or its class: read before the model is made.

    A model that was made from a class may keep something else under that name, such as a layer of its own.
    """
    kind: Normalisation = getattr(model, "normalisation", "symmetric")
    if kind not in NORMALISATIONS:
        raise UserError(
            f"model {_name(model)}: normalisation {kind!r} does not exist; "
            f"choose from {choices(NORMALISATIONS, str(kind))}"
        )
    return kind


def is_pyg_model(model: object) -> bool:
    """Whether `forward` of a module, or of its class, is `forward(x, edge_index)`: PyG's way."""
    forward = getattr(model, "forward", None)
    try:
        signature = inspect.signature(forward)  # type: ignore[arg-type]
        names = [name for name in signature.parameters if name != "self"]
        signature.bind(*[None] * (3 if "self" in signature.parameters else 2))
    except (TypeError, ValueError):
        return False
    return names[1:2] == ["edge_index"]


def traits_of(model: object) -> Traits:
    """The contract of a model, or of its class; what it leaves out has the default of `GraphModel`."""
    return Traits(
        linear=bool(getattr(model, "linear", False)),
        shrinks=bool(getattr(model, "shrinks", False)),
        widths=getattr(model, "widths", None),
        embed=getattr(model, "embed", None),
        segments=getattr(model, "segments", None),
    )


def _takes_settings(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Whether all settings go in as one: asked for by name, or `(*arguments, **settings)` passes them on."""
    named = [name for name, p in parameters.items() if p.kind not in ANYTHING]
    return "settings" in named or not named


def _shape_arguments(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.kind in POSITIONAL][: len(SHAPE)]


def _name(target: object) -> str:
    return getattr(target, "__name__", type(target).__name__)
