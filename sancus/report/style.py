"""The style sheet of the page: light and dark by the reader's setting, one column on a phone."""

CSS = """
:root { color-scheme: light dark; --ground: #fcfcfb; --card: #fff; --ink: #1c1e21; --quiet: #5b6169;
  --rule: #dcdfe3; --s0: #1f6fb2; --s1: #c2560c; --s2: #2b7d45; --warn: #fff4d6; --warn-rule: #d9a400; }
@media (prefers-color-scheme: dark) { :root { --ground: #15171a; --card: #1d2024; --ink: #e8eaed;
  --quiet: #a3abb5; --rule: #363b42; --s0: #6cb0ee; --s1: #f0955a; --s2: #73c68c; --warn: #39300f; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 1.5rem 1rem 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .75rem; }
h3 { font-size: 1rem; margin: 0 0 .4rem; }
p { margin: .4rem 0; max-width: 46rem; }
header p, figcaption, .note { color: var(--quiet); }
figcaption, .note { font-size: .875rem; }
figcaption { margin-top: .4rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 1.25rem 0 0; }
.tiles div { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .7rem .9rem; }
.tiles dt { color: var(--quiet); font-size: .875rem; }
.tiles dd { margin: 0; font-size: 1.4rem; font-weight: 600; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
.missing { background: var(--warn); border-left: 4px solid var(--warn-rule); margin: 1.25rem 0 0;
  padding: .7rem 1rem; overflow-wrap: anywhere; }
.missing ul { margin: .25rem 0 0; padding-left: 1.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr));
  gap: .75rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .9rem; min-width: 0; }
figure > svg { display: block; width: 100%; height: auto; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1rem; list-style: none; margin: 0 0 .4rem;
  padding: 0; font-size: .875rem; }
.legend svg { width: 28px; height: 12px; margin-right: .35rem; }
svg text { fill: var(--quiet); font: 13px system-ui, sans-serif; }
@media (max-width: 30rem) { svg text { font-size: 16px; } }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2.2; stroke-linecap: round; stroke-linejoin: round; }
.line.s0 { stroke: var(--s0); }
.line.s1 { stroke: var(--s1); stroke-dasharray: 7 5; }
.line.s2 { stroke: var(--s2); stroke-dasharray: 1 5; }
.bar.s0 { fill: var(--s0); }
.bar.s1 { fill: var(--s1); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--rule); padding: .35rem .9rem .35rem 0; text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 500; }
thead th { color: var(--quiet); font-size: .875rem; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--ground); }
td small { display: block; color: var(--quiet); }
.pairs { min-width: min(100%, 30rem); }
.pairs th:first-child { position: static; }
.pairs td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
pre { background: var(--card); border: 1px solid var(--rule); border-radius: .5rem; padding: .8rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font-size: .9rem; }
"""
