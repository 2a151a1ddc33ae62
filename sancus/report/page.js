// Draws the figures of a report. Everything it needs is inside the page; nothing is fetched.
(async () => {
  "use strict";
  const root = document.documentElement;
  const MARK = "\u0001"; // a colour of the style sheet, by its name
  const find = (selector) => [...document.querySelectorAll(selector)];

  const unpack = (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")));
  };

  // --- theme: the reader's setting, until the switch is used

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const remember = (value) => { try { localStorage.setItem("sancus-theme", value); } catch { /* from disk */ } };
  try { root.dataset.theme = localStorage.getItem("sancus-theme") || ""; } catch { /* from disk */ }
  const toggle = document.getElementById("theme");
  const name = () => {
    const other = theme() === "dark" ? "light" : "dark";
    toggle.textContent = other === "dark" ? "Dark" : "Light";
    toggle.setAttribute("aria-label", `Switch to ${other} colours`);
  };
  if (toggle) {
    toggle.hidden = false;
    name();
    toggle.addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      remember(root.dataset.theme);
      name();
      redraw();
    });
  }
  dark.addEventListener("change", () => { if (toggle) name(); redraw(); });

  // --- charts

  const charts = await unpack("charts").json();
  const plots = find(".plot");
  const drawn = new Set();
  const hidden = charts.map(() => new Set());

  const coloured = (value, style) => {
    if (typeof value === "string") {
      return value.startsWith(MARK) ? style.getPropertyValue(`--${value.slice(1)}`).trim() : value;
    }
    if (Array.isArray(value)) {
      const numbers = value.length > 2 && typeof value[0] === "number"; // long, and nothing to look up
      return numbers ? value : value.map((item) => coloured(item, style));
    }
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item, style)]));
    }
    return value;
  };

  const axis = (given, style, narrow) => ({
    gridcolor: style.getPropertyValue("--rule").trim(),
    linecolor: style.getPropertyValue("--rule").trim(),
    zeroline: false,
    automargin: true,
    fixedrange: !matchMedia("(pointer: fine)").matches,
    ...(narrow && !given.nticks ? { nticks: 5 } : {}),
    ...given,
    title: { standoff: 6, ...given.title },
  });

  const draw = (place) => {
    const style = getComputedStyle(root);
    const chart = charts[place], plot = plots[place];
    const layout = coloured(chart.layout, style);
    const narrow = plot.clientWidth < 420;
    const text = style.getPropertyValue("--quiet").trim();
    const traces = coloured(chart.traces, style).map((trace, index) => ({
      ...trace,
      ...(trace.type === "heatmap" ? { textfont: { size: narrow ? 10 : 12 } } : {}),
      visible: !hidden[place].has(index),
    }));
    return Plotly.react(plot, traces, {
      hovermode: "x",
      ...layout,
      xaxis: axis(layout.xaxis || {}, style, narrow),
      yaxis: axis(layout.yaxis || {}, style, narrow),
      height: Number(plot.dataset.height),
      margin: { l: 8, r: 10, t: 8, b: 8 },
      showlegend: false,
      dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
      font: { family: "system-ui, sans-serif", size: narrow ? 11 : 12, color: text },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: {
        bgcolor: style.getPropertyValue("--card").trim(),
        bordercolor: style.getPropertyValue("--quiet").trim(),
        font: { color: style.getPropertyValue("--ink").trim(), size: 13 },
      },
    }, { displayModeBar: false, responsive: true, showTips: false });
  };

  const show = (place) => {
    if (drawn.has(place)) return;
    drawn.add(place);
    draw(place);
  };
  function redraw() { drawn.forEach((place) => draw(place)); }

  find(".key[data-traces]").forEach((key) => key.addEventListener("click", () => {
    const place = Number(key.dataset.chart), on = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(on));
    key.dataset.traces.split(" ").map(Number).forEach((index) => {
      if (on) hidden[place].delete(index); else hidden[place].add(index);
    });
    if (drawn.has(place)) draw(place); else show(place);
  }));

  // --- CSV, one click

  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  find(".csv").forEach((button) => button.addEventListener("click", () => {
    const { columns, name: heading } = charts[Number(button.dataset.chart)];
    const names = Object.keys(columns), lines = [names.map(cell).join(",")];
    const count = Math.max(0, ...names.map((key) => columns[key].length));
    for (let row = 0; row < count; row += 1) lines.push(names.map((key) => cell(columns[key][row])).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
    link.download = `${heading.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));

  // --- the library, then the figures: those in sight first, all of them before printing

  await new Promise((resolve, reject) => {
    unpack("library").blob().then((source) => {
      const script = document.createElement("script");
      script.src = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      script.onload = resolve;
      script.onerror = reject;
      document.head.append(script);
    }, reject);
  });
  const watcher = new IntersectionObserver((entries) => entries.forEach((entry) => {
    if (!entry.isIntersecting) return;
    watcher.unobserve(entry.target);
    show(plots.indexOf(entry.target));
  }), { rootMargin: "600px" });
  plots.forEach((plot) => watcher.observe(plot));
  let before = "";
  addEventListener("beforeprint", () => {
    before = root.dataset.theme || "";
    root.dataset.theme = "light";
    plots.forEach((_, place) => { drawn.add(place); draw(place); });
  });
  addEventListener("afterprint", () => { root.dataset.theme = before; redraw(); });
  root.dataset.ready = "yes";
})();
