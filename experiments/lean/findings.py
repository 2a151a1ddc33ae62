"""What `lean` saves, in all bytes and in payload: the headline, the table, what was wanted."""

from __future__ import annotations

from experiments.engine.figures import FIGURES
from experiments.engine.measured import Measured, count, span
from experiments.engine.tables import cell, render

GENERATED = "synthetic"


def real(measured: Measured) -> list[str]:
    """The graphs that were not generated."""
    return [graph for graph in measured.labels("graph") if graph != GENERATED]


def times(measured: Measured, figure: str, **labels: str | list[str]) -> str:
    """A span of how many times fewer, as whole numbers."""
    values = list(measured.each(figure, **labels).values())
    return span(count(min(values)), count(max(values)))


def loss(measured: Measured, parts: str, preset: str, graphs: list[str]) -> str:
    """The most that is lost in the mean over the seeds; 0.0 where nothing is."""
    return f"{max(0.0, -min(measured.each('points', preset=preset, parts=parts, graph=graphs).values())):.1f}"


def headline(measured: Measured) -> str:
    """The paragraph of the README."""
    graphs = real(measured)
    ranks = measured.content["cases"][0]["ranks"]
    return (
        f"**What it saves.** On {len(graphs)} real graphs cut by METIS over {ranks} ranks, `lean` sends "
        f"{times(measured, 'fewer', preset='lean', parts='METIS', graph=graphs)} times fewer bytes an epoch than CAGNET *in all*: payload, "
        "parameters and agreement (payload alone: "
        f"{times(measured, 'payload_fewer', preset='lean', parts='METIS', graph=graphs)} times fewer). Test accuracy falls by "
        f"{loss(measured, 'METIS', 'lean', graphs)} points or less (mean of {measured.seeds} seeds). On random parts it is "
        f"{times(measured, 'fewer', preset='lean', parts='random', graph=graphs)} times fewer in all (payload "
        f"{times(measured, 'payload_fewer', preset='lean', parts='random', graph=graphs)} times), at {loss(measured, 'random', 'lean', graphs)} "
        "points or less. Command, table and limits: [docs/composition.md](docs/composition.md#what-it-saves)."
    )


def composition(measured: Measured) -> str:
    """The table and the findings of docs/composition.md."""
    head = ["graph, parts", "`exact`", "`lean`", "`partition-only`", "`cagnet`, all MB an epoch"]
    rows = [
        [
            *head,
            "`exact`: times fewer in all",
            "payload",
            "`lean`: times fewer in all",
            "payload",
            "with the first epoch, in all",
        ]
    ]
    for graph in measured.labels("graph"):
        for parts in measured.labels("parts"):
            place = {"graph": graph, "parts": parts}
            rows.append(
                [
                    f"{graph}, {parts}",
                    cell(measured.cases(**place, preset="exact"), "test"),
                    cell(measured.cases(**place, preset="lean"), "points"),
                    cell(measured.cases(**place, preset="partition-only"), "points"),
                    measured.show("all_mb", **place, preset="cagnet"),
                    *(
                        count(measured.value(figure, **place, preset=preset))
                        for preset in ("exact", "lean")
                        for figure in ("fewer", "payload_fewer")
                    ),
                    count(measured.value("mean_fewer", **place, preset="lean")),
                ]
            )
    graphs = real(measured)
    everywhere = measured.each("points", preset="lean")
    return "\n\n".join(
        [
            f"GCN, {measured.flag('layers')} layers × {measured.flag('hidden')}, {measured.flag('epochs', preset='lean')} epochs, "
            f"{measured.content['cases'][0]['ranks']} ranks, mean of {measured.seeds} seeds ± standard deviation "
            f"({measured.machine}), by",
            f"    SANCUS_DATA=... {measured.content['command']}",
            "Test accuracy of `exact`, points that `lean` and `partition-only` are off, all bytes of an epoch of `cagnet` (payload + parameters "
            "+ agreement), and how many times fewer bytes cross: in all, and in the payload alone, in an epoch after the first; in the last "
            "column with the first epoch, which carries the input once.",
            render(rows),
            "What was wanted of it, and what came out:",
            f"- *`lean` within half a point of `exact`*: on {sum(value >= -0.5 for value in everywhere.values())} of {len(everywhere)} rows "
            f"({FIGURES['points'].form(min(everywhere.values()))} at worst), where `partition-only` loses up to "
            f"{loss(measured, 'random', 'partition-only', graphs)} points.",
            f"- *`exact` at least 20 times fewer bytes than `cagnet`, with the same losses* (which a test compares, without dropout): in the "
            f"payload on {_at_least(measured, 'payload_fewer', 'exact', 20)} rows, in all bytes on {_at_least(measured, 'fewer', 'exact', 20)}.",
            f"- *`lean` at least 2 000 times fewer on METIS parts*: in the payload on "
            f"{_at_least(measured, 'payload_fewer', 'lean', 2000, parts='METIS')} graphs; in all bytes on "
            f"{_at_least(measured, 'fewer', 'lean', 2000, parts='METIS')}, since the gradients of the weights cross too, "
            f"{measured.span('other_mb', preset='lean')} MB an epoch.",
            f"- *at least 100 times fewer on random parts*: in the payload on {_at_least(measured, 'payload_fewer', 'lean', 100, parts='random')} "
            f"graphs, in all bytes on {_at_least(measured, 'fewer', 'lean', 100, parts='random')}.",
        ]
    )


def _at_least(measured: Measured, figure: str, preset: str, wanted: float, **labels: str) -> str:
    values = measured.each(figure, preset=preset, **labels).values()
    return f"{sum(value >= wanted for value in values)} of {len(values)}"


def text(measured: Measured) -> str:
    """What the README of the experiment says below its table."""
    return (
        "What it means is in [docs/composition.md](../../docs/composition.md#what-it-saves). The gradients of the weights and the headers, "
        f"{measured.span('other_mb', preset='lean')} MB an epoch, are the same for all presets: they bound what any of them can save."
    )


def choosing(measured: Measured) -> str:
    """The table of docs/choosing.md; staleness from `sancus_figure23`, one bit from `sylvie_figure8`."""
    stale = measured.beside("sancus_figure23")
    graph = "linux-include"
    place = {"graph": graph}

    def fewer(preset: str, parts: str) -> str:
        values = [
            count(measured.value(figure, **place, parts=parts, preset=preset))
            for figure in ("fewer", "payload_fewer")
        ]
        return f"{values[0]} times fewer bytes in all than `cagnet` on {parts} parts (payload: {values[1]} times)"

    def points(preset: str, parts: str) -> str:
        return f"{measured.show('points', **place, parts=parts, preset=preset)} points on {parts} parts"

    random = "squirrel, random"
    levels = ("sancus-e:1", "sancus-a:3", "sancus-h:3")
    skipped = ", ".join(f"`{one}` {stale.span('hidden_skipped', preset=one)}" for one in levels)
    within = {
        one: stale.each("points", preset=one, graph=[g for g in stale.labels("graph") if "METIS" in g])
        for one in levels
    }
    kept = ", ".join(
        f"`{one}` on {sum(v >= -1 for v in vs.values())} of {len(vs)}" for one, vs in within.items()
    )
    lost = ", ".join(
        f"`{one}` {stale.show('points', graph=random, preset=one)}"
        for one in ("sancus-e:1", "sancus-e:3", "sancus-h:3")
    )
    rows = [
        ["you see", "choose", "measured", "it costs"],
        [
            "you need the numbers of one process",
            "`--preset exact`",
            f"{graph}: {fewer('exact', 'random')}; {fewer('exact', 'METIS')} ¹",
            "nothing: the same numbers, without dropout on dense features",
        ],
        [
            "nothing yet, or bytes dominate",
            "`--preset lean` (default)",
            f"{graph}: {fewer('lean', 'random')}; {fewer('lean', 'METIS')} ¹",
            f"{points('lean', 'random')}, {points('lean', 'METIS')}, mean of {measured.seeds} seeds ¹",
        ],
        [
            "latency dominates, blocks are whole (`--plan block`)",
            "`--preset sancus-e:1`, `sancus-a:3`, `sancus-h:3`",
            f"share of hidden embeddings skipped: {skipped}; within one point on METIS parts: {kept} ²",
            "history memory on every rank (Table 6 of the paper; the report shows it)",
        ],
        [
            "parts are random, or the cut is large",
            "fresh rows: `exact` or `lean`; better: METIS parts",
            f"squirrel, random parts, points: {lost} ²",
            "stale rows have their price there",
        ],
        [
            "compute and communication take about equally long",
            "`--preset pipegcn`",
            "cora below: age 1",
            "a stale epoch; memory for histories",
        ],
        [
            "you wonder whether neighbours in other parts matter at all",
            "`--preset partition-only` beside it",
            f"{graph}: {points('partition-only', 'random')}, {points('partition-only', 'METIS')} ¹",
            "it is the honest baseline, not a choice",
        ],
    ]
    return "\n\n".join(
        [
            render(rows),
            f"¹ [composition.md](composition.md#what-it-saves), {measured.flag('epochs', preset='lean')} epochs. ² "
            f"[experiments/sancus_figure23](../experiments/sancus_figure23/README.md), {stale.seeds} seeds. "
            f"{measured.content['cases'][0]['ranks']} ranks; {measured.machine}.",
        ]
    )


def rule(measured: Measured) -> str:
    """Few bits beside stale rows, on the graph where the cut matters most."""
    stale = measured.beside("sancus_figure23")
    graph = "linux-include"
    off = stale.show("points", graph=f"{graph}, METIS", preset="sancus-e:3")
    return (
        f"**Few bits, or stale rows?** On METIS parts of {graph} `lean`, which sends always, is "
        f"{measured.show('points', graph=graph, parts='METIS', preset='lean')} points off `exact`; `sancus-e:3`, which sends every fourth "
        f"epoch, {off} points off `cagnet`."
    )
