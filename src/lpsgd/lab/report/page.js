"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = 6;
  const DASHES = ["solid", "dash", "dot"];
  const hidden = new Set();
  const drawn = new Map(); // chart key -> { chart, plot }
  const band = document.getElementById("band");
  const across = document.getElementById("across");
  const part = document.getElementById("part");

  // --- theme: the system's unless the reader chose -------------------------------------------
  const themes = ["system", "light", "dark"];
  let theme = "system";
  try { theme = localStorage.getItem("lpsgd-theme") || "system"; } catch { /* storage is off */ }
  if (!themes.includes(theme)) theme = "system";

  function applyTheme() {
    document.documentElement.dataset.theme = theme;
    document.getElementById("theme").textContent = `Theme: ${theme}`;
    redraw();
  }
  document.getElementById("theme").addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("lpsgd-theme", theme); } catch { /* storage is off */ }
    applyTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  function css(name) { // the colour that a variable has at this moment, as rgb(...)
    document.body.style.outlineColor = `var(${name})`;
    return getComputedStyle(document.body).outlineColor;
  }
  const colour = (series) => css(`--series-${series % COLOURS}`);
  const dash = (series) => DASHES[Math.floor(series / COLOURS) % DASHES.length];
  const faint = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);

  // plotly reads names as a kind of HTML, so a name must be escaped even here
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  // --- optimizers: swatches everywhere, and the buttons that show and hide --------------------
  for (const place of document.querySelectorAll("[data-series]")) {
    const series = Number(place.dataset.series);
    const row = place.closest("tr") || place;
    row.style.setProperty("--colour", `var(--series-${series % COLOURS})`);
    if (place.classList.contains("swatch")) place.classList.add(dash(series));
  }
  data.optimizers.forEach((optimizer, series) => {
    const button = document.createElement("button");
    const swatch = document.createElement("span");
    swatch.className = `swatch ${dash(series)}`;
    button.type = "button";
    button.style.setProperty("--colour", `var(--series-${series % COLOURS})`);
    button.setAttribute("aria-pressed", "true");
    button.title = "Click to show or hide, double-click to show this one alone";
    button.append(swatch, optimizer.label);
    button.addEventListener("click", () => {
      if (!hidden.delete(series)) hidden.add(series);
      showToggles();
    });
    button.addEventListener("dblclick", () => {
      hidden.clear();
      data.optimizers.forEach((_, other) => { if (other !== series) hidden.add(other); });
      showToggles();
    });
    document.getElementById("toggles").append(button);
  });
  function showToggles() {
    [...document.getElementById("toggles").children].forEach((button, series) => {
      button.setAttribute("aria-pressed", String(!hidden.has(series)));
    });
    redraw();
  }

  // --- charts ---------------------------------------------------------------------------------
  function clock() { // the unit of training time that suits the longest line
    let longest = 0;
    for (const optimizer of data.optimizers)
      for (const line of Object.values(optimizer.lines)) longest = Math.max(longest, ...line.seconds);
    if (longest > 3 * 3600) return [3600, "h"];
    return longest > 300 ? [60, "min"] : [1, "s"];
  }
  const [unit, unitName] = clock();
  const lastEpoch = Math.max(1, ...data.optimizers.flatMap((o) => Object.values(o.lines)).flatMap((l) => l.epoch));
  const x = (line, i) => across.value === "epoch" ? line.epoch[i] : line.seconds[i] / unit;
  // the places on a line that the reader wants to see: all of it, or only its end
  const places = (line) => [...line.epoch.keys()].filter((i) => line.epoch[i] > lastEpoch * (1 - Number(part.value)));

  function traces(chart) {
    const behind = [], lines = [];
    data.optimizers.forEach((optimizer, series) => {
      const line = optimizer.lines[chart.key];
      if (!line || hidden.has(series)) return;
      const common = { name: escaped(optimizer.label), type: "scatter" };
      behind.push(...bandTraces(chart, line, series, common));
      for (const seed of line.seeds)
        if (seed.diverged || band.value === "seeds") behind.push(seedTrace(seed, series, common));
      const at = places(line);
      lines.push({ ...common, mode: at.length === 1 ? "markers" : "lines",
        x: at.map((i) => x(line, i)), y: at.map((i) => line.mean[i]),
        line: { width: 2.2, color: colour(series), dash: dash(series) },
        marker: { size: 9, color: colour(series) },
        customdata: at.map((i) => spread(chart, line, i)),
        hovertemplate: `<b>%{y:.${chart.digits}${chart.digits > 4 ? "~" : ""}f}</b>%{customdata}` });
    });
    return [...behind, ...lines];
  }
  function bandTraces(chart, line, series, common) {
    const [low, high] = { range: [line.min, line.max], interval: [line.low, line.high] }[band.value] || [];
    if (!low) return [];
    const at = places(line).filter((i) => low[i] !== null && high[i] > low[i]);
    const floor = (value) => chart.log ? Math.max(value, 1e-12) : value;
    const back = [...at].reverse();
    return at.length < 2 ? [] : [{ ...common, mode: "lines", fill: "toself", hoverinfo: "skip",
      line: { width: 0 }, fillcolor: faint(colour(series), 0.18),
      x: [...at, ...back].map((i) => x(line, i)),
      y: [...at.map((i) => high[i]), ...back.map((i) => floor(low[i]))] }];
  }
  function seedTrace(seed, series, common) {
    const at = places(seed);
    const end = seed.y.length - 1;
    return { ...common, mode: "lines+markers", hoverinfo: "skip",
      x: at.map((i) => x(seed, i)), y: at.map((i) => seed.y[i]),
      line: { width: 1, color: faint(colour(series), seed.diverged ? 1 : 0.6), dash: seed.diverged ? "dot" : dash(series) },
      marker: { symbol: "x", color: colour(series), size: at.map((i) => seed.diverged && i === end ? 9 : 0) } };
  }
  function spread(chart, line, i) {
    if (line.n[i] < 2 || line.min[i] === line.max[i]) return "";
    const [low, high] = band.value === "interval" ? [line.low[i], line.high[i]] : [line.min[i], line.max[i]];
    return `  (${low.toFixed(chart.digits)} to ${high.toFixed(chart.digits)}, ${line.n[i]} seeds)`;
  }

  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  // A rate that is annealed to nothing would stretch a logarithmic axis without end: four decades do.
  function logAxis(shown) {
    const [low, top] = extent(shown.flatMap((trace) => trace.y).filter((y) => y > 0));
    if (!(top > 0)) return { type: "log" };
    const range = [Math.log10(Math.max(low, top / 1e4)) - 0.08, Math.log10(top) + 0.08];
    const decades = range[1] - range[0];
    return { type: "log", range, tickformat: "~g", dtick: decades > 2.5 ? 1 : "D2" };
  }
  function xRange(shown) {
    const [first, last] = extent(shown.flatMap((trace) => trace.x));
    const room = last > first ? 0.01 * (last - first) : 0.5;
    return first <= last ? { range: [first - room, last + room] } : {};
  }

  function draw({ chart, plot }) {
    const shown = traces(chart);
    const axis = { gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, automargin: true,
                   color: css("--soft"), fixedrange: false };
    const font = { size: 13 };
    const horizontal = across.value === "epoch" ? "epoch" : `training time (${unitName})`;
    Plotly.react(plot, shown, {
      margin: { l: 58, r: 14, t: 10, b: 46 }, showlegend: false, hovermode: "x unified",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), font: { color: css("--ink"), size: 13 }, namelength: 28 },
      xaxis: { ...axis, ...xRange(shown), title: { text: horizontal, font }, hoverformat: across.value === "epoch" ? "d" : ".4~g" },
      yaxis: { ...axis, title: { text: chart.axis, font }, ...(chart.log ? logAxis(shown) : { type: "linear" }) },
    }, { responsive: true, displaylogo: false, displayModeBar: "hover",
         modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"] });
  }
  function redraw() { drawn.forEach(draw); }

  function place(group) {
    for (const chart of data.charts.filter((chart) => chart.group === group)) {
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      const plot = document.createElement("div");
      figure.className = "chart";
      figure.id = `chart-${chart.key}`;
      caption.textContent = chart.title;
      plot.className = "plot";
      figure.append(caption, plot);
      document.getElementById(`charts-${group}`).append(figure);
      drawn.set(chart.key, { chart, plot });
      draw(drawn.get(chart.key));
    }
  }

  // --- tables ---------------------------------------------------------------------------------
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
    const text = cell.textContent.trim();
    if (cell.classList.contains("number") || cell.classList.contains("drawing") || text === "-") return null;
    return text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text;
  };
  function compare(a, b) { // numbers before words, and what is missing last whichever way
    if (typeof a === typeof b) return typeof a === "number" ? a - b : String(a).localeCompare(String(b));
    return typeof a === "number" ? -1 : 1;
  }
  function sortBy(table, head) {
    const column = head.cellIndex;
    const direction = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", direction);
    const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, column), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return direction === "ascending" ? compare(a, b) : compare(b, a);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }
  for (const table of document.querySelectorAll("table.sortable"))
    for (const head of table.tHead.rows[0].cells)
      head.firstElementChild.addEventListener("click", () => sortBy(table, head));

  for (const choice of [band, across, part]) choice.addEventListener("change", redraw);
  applyTheme();
  place("curves");
  place("schedules");
  const inside = document.getElementById("inside");
  inside.hidden = !data.charts.some((chart) => chart.group === "inside");
  inside.addEventListener("toggle", () => { if (inside.open) place("inside"); }, { once: true });
})();
