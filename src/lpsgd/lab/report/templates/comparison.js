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

  // --- colours: the theme's, which the reader and the system may change -----------------------
  document.addEventListener("themechange", redraw);

  // plotly cannot read CSS variables: what each means at this moment, as rgb(...)
  let known = {};
  const probe = document.createElement("i");
  probe.hidden = true;
  document.body.append(probe);
  function css(name) {
    if (!(name in known)) {
      probe.style.color = `var(${name})`;
      known[name] = getComputedStyle(probe).color;
    }
    return known[name];
  }
  const colour = (series) => css(`--series-${series % COLOURS}`);
  const dash = (series) => DASHES[Math.floor(series / COLOURS) % DASHES.length];
  const paint = (element, series) => element.style.setProperty("--colour", `var(--series-${series % COLOURS})`);
  function make(tag, className) {
    const element = document.createElement(tag);
    element.className = className;
    return element;
  }
  const swatch = (series) => make("span", `swatch ${dash(series)}`);
  const faint = (rgb, share) => rgb.replace("rgb(", "rgba(").replace(")", `, ${share})`);

  // --- optimizers: swatches everywhere, and the buttons that show and hide --------------------
  for (const place of document.querySelectorAll("[data-series]")) {
    const series = Number(place.dataset.series);
    paint(place.closest("tr"), series);
    if (place.classList.contains("swatch")) place.classList.add(dash(series));
  }
  data.optimizers.forEach((optimizer, series) => {
    const button = document.createElement("button");
    button.type = "button";
    paint(button, series);
    button.setAttribute("aria-pressed", "true");
    button.title = "Click to show or hide, double-click to show this one alone";
    button.append(swatch(series), optimizer.label);
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
  // not Math.max(...all): a call with very many arguments is an error
  const lastEpoch = data.optimizers.flatMap((o) => Object.values(o.lines)).flatMap((l) => l.epoch)
    .reduce((a, b) => Math.max(a, b), 1);
  const x = (line, i) => across.value === "epoch" ? line.epoch[i] : line.seconds[i] / unit;
  // the places on a line that the reader wants to see: all of it, or only its end
  const places = (line) => [...line.epoch.keys()].filter((i) => line.epoch[i] > lastEpoch * (1 - Number(part.value)));

  function traces(chart) {
    const behind = [], lines = [];
    data.optimizers.forEach((optimizer, series) => {
      const line = optimizer.lines[chart.key];
      if (!line || hidden.has(series)) return;
      // plotly reads names as a kind of HTML, so it is never told one
      const common = { meta: series, type: "scatter" };
      behind.push(...bandTraces(chart, line, series, common));
      for (const seed of line.seeds)
        if (seed.diverged || band.value === "seeds") behind.push(seedTrace(seed, series, common));
      const at = places(line);
      lines.push({ ...common, mode: at.length === 1 ? "markers" : "lines",
        x: at.map((i) => x(line, i)), y: at.map((i) => line.mean[i]),
        line: { width: 2.2, color: colour(series), dash: dash(series) },
        marker: { size: 9, color: colour(series) }, hoverinfo: "none" });
    });
    return [...behind, ...lines];
  }
  function bandTraces(chart, line, series, common) {
    const [low, high] = { range: [line.min, line.max], interval: [line.low, line.high] }[band.value] || [];
    if (!low) return [];
    const at = places(line).filter((i) => low[i] !== null);
    const floor = (value) => chart.log ? Math.max(value, 1e-12) : value;
    const back = [...at].reverse();
    return !at.some((i) => high[i] > low[i]) ? [] : [{ ...common, mode: "lines", fill: "toself", hoverinfo: "skip",
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
  const extent = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);

  // A rate that is annealed to nothing would stretch a logarithmic axis without end: four decades do.
  function logAxis(shown) {
    const [low, top] = extent(shown.flatMap((trace) => trace.y).filter((y) => y > 0));
    if (!(top > 0)) return { type: "log" };
    const range = [Math.log10(Math.max(low, top / 1e4)) - 0.08, Math.log10(top) + 0.08];
    const decades = range[1] - range[0];
    if (decades < 1) return { type: "linear" }; // too few ticks to read
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
      margin: { l: 58, r: 14, t: 36, b: 46 }, showlegend: false, hovermode: "x", hoverdistance: -1,
      paper_bgcolor: css("--card"), plot_bgcolor: css("--card"),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") },
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
      xaxis: { ...axis, ...xRange(shown), dtick: across.value === "epoch" && lastEpoch <= 10 ? 1 : undefined, title: { text: horizontal, font }, showspikes: true, spikemode: "across",
               spikesnap: "hovered data", spikethickness: 1, spikedash: "dot", spikecolor: css("--soft") },
      yaxis: { ...axis, title: { text: chart.axis, font }, ...(chart.log ? logAxis(shown) : { type: "linear" }) },
    }, { responsive: true, displaylogo: false, displayModeBar: "hover",
         modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] });
  }
  // --- what the pointer is on: our own readout, in which a name is text and nothing else -------
  const digits = (chart, value) =>
    chart.digits > 4 ? String(Number(value.toPrecision(4))) : value.toFixed(chart.digits);

  function readings(chart, wanted) { // each visible optimizer's place nearest to x = wanted, highest first
    const found = [];
    data.optimizers.forEach((optimizer, series) => {
      const line = optimizer.lines[chart.key];
      const at = line && !hidden.has(series) ? places(line) : [];
      if (!at.length) return;
      const off = (i) => Math.abs(x(line, i) - wanted);
      found.push({ optimizer, series, line, i: at.reduce((a, b) => off(b) < off(a) ? b : a) });
    });
    return found.sort((a, b) => b.line.mean[b.i] - a.line.mean[a.i]);
  }
  function spread(chart, line, i) {
    const [low, high] = band.value === "interval" ? [line.low[i], line.high[i]] : [line.min[i], line.max[i]];
    return line.n[i] < 2 || low === high ? "" : `${digits(chart, low)} to ${digits(chart, high)} (${line.n[i]} seeds)`;
  }
  function cell(row, text, kind) {
    const made = row.insertCell();
    made.className = kind;
    made.append(text);
    return made;
  }
  function showReadout(chart, readout, wanted) {
    const found = readings(chart, wanted);
    if (!found.length) return;
    const { line, i } = found[0];
    const table = document.createElement("table");
    table.createCaption().textContent =
      across.value === "epoch" ? `epoch ${line.epoch[i]}` : `after ${Number(x(line, i).toPrecision(4))} ${unitName}`;
    for (const { optimizer, series, line, i } of found) {
      const row = table.insertRow();
      paint(row, series);
      cell(row, swatch(series), "key").append(optimizer.label);
      cell(row, digits(chart, line.mean[i]), "mean");
      cell(row, spread(chart, line, i), "spread");
    }
    readout.replaceChildren(table);
    readout.hidden = false;
    // below the chart, so that no curve is covered, or above it where the window ends
    const bottom = readout.parentElement.getBoundingClientRect().bottom;
    readout.classList.toggle("above", bottom + readout.offsetHeight > innerHeight);
  }

  function redraw() {
    known = {};
    drawn.forEach(draw);
  }

  function place(group) {
    for (const chart of data.charts.filter((chart) => chart.group === group)) {
      const figure = make("figure", "chart");
      const caption = document.createElement("figcaption");
      const plot = make("div", "plot");
      const readout = make("div", "readout");
      figure.id = `chart-${chart.key}`;
      caption.textContent = chart.title;
      readout.hidden = true;
      figure.append(caption, plot, readout);
      document.getElementById(`charts-${group}`).append(figure);
      drawn.set(chart.key, { chart, plot });
      draw(drawn.get(chart.key));
      plot.on("plotly_hover", (hover) => showReadout(chart, readout, hover.xvals[0]));
      plot.on("plotly_unhover", () => { readout.hidden = true; });
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
  redraw();
  place("curves");
  place("schedules");
  const inside = document.getElementById("inside");
  inside.hidden = !data.charts.some((chart) => chart.group === "inside");
  inside.addEventListener("toggle", () => { if (inside.open) place("inside"); }, { once: true });
})();
