"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const EPS = 1e-8;
  const hidden = new Set();

  // --- the descents, as the optimizers compute them --------------------------------------------
  const rho = (p) => 1 - 1 / (p - 1);
  const direction = (g, p) => p === 2 ? g : g * Math.pow(Math.abs(g) + EPS, -rho(p));
  // the paper's cosine: p_max at the first step, 2 at the last
  const annealed = (t, steps, pMax) =>
    2 + (pMax - 2) * (1 + Math.cos(Math.PI * (t / Math.max(steps - 1, 1)))) / 2;
  const RULES = {
    "GD": (g, t, s) => s.lr_gd * g,
    "SignGD": (g, t, s) => s.lr_sign * Math.sign(g),
    "LPSGD, fixed p": (g, t, s) => s.lr_lpsgd * direction(g, s.p_max),
    "LPSGD, annealed p": (g, t, s) => s.lr_lpsgd * direction(g, annealed(t, s.steps, s.p_max)),
  };

  function descend(method, curvature, minimum, settings) {
    let point = [...settings.start];
    const points = [point];
    for (let t = 0; t < settings.steps; t++) {
      point = point.map((x, i) => x - RULES[method](curvature[i] * (x - minimum[i]), t, settings));
      points.push(point);
      if (!(Math.max(...point.map(Math.abs)) < data.far)) break;
    }
    return points;
  }
  const loss = (curvature, minimum, point) =>
    0.5 * point.reduce((sum, x, i) => sum + curvature[i] * (x - minimum[i]) ** 2, 0);
  function withAnisotropy(curvature, ratio) {
    const mean = Math.sqrt(curvature[0] * curvature[1]), root = Math.sqrt(ratio);
    return [mean * root, mean / root];
  }

  // --- state: one place, from which everything is drawn ----------------------------------------
  const first = data.quadratics[0].settings;
  const shared = { p_max: first.p_max, steps: first.steps };
  let upTo = shared.steps;
  const landscapes = data.quadratics.map((quadratic) => ({
    ...quadratic,
    anisotropy: quadratic.curvature[0] / quadratic.curvature[1],
    settings: { ...quadratic.settings },
  }));

  function run(landscape) {
    Object.assign(landscape.settings, shared);
    const curvature = withAnisotropy(landscape.curvature, landscape.anisotropy);
    const runs = {};
    for (const method of data.methods) runs[method] = descend(method, curvature, landscape.minimum, landscape.settings);
    return { curvature, runs };
  }

  // --- small helpers ---------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  function svg(tag, attributes, ...children) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  function html(tag, attributes, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }
  const short = (value) => !Number.isFinite(value) ? "diverged" : Number(value.toPrecision(3)).toString();
  const colour = (method) => `var(--series-${data.methods.indexOf(method)})`;
  const DASHES = ["none", "9 4", "2.5 3", "10 3 2.5 3"];
  const dash = (method) => DASHES[data.methods.indexOf(method)];

  // A slider whose position is a power of ten or the value itself.
  function slider(id, label, { min, max, log = false, step = null, get, set }) {
    const to = log ? Math.log10 : (x) => x;
    const input = html("input", { type: "range", id, min: to(min), max: to(max), step: step || (to(max) - to(min)) / 400 });
    const output = html("output", { for: id });
    const show = () => { input.value = to(get()); output.value = short(get()); };
    input.addEventListener("input", () => {
      const position = Number(input.value);
      set(log ? Number((10 ** position).toPrecision(4)) : position);
      output.value = short(get());
      draw();
    });
    show();
    return html("label", { class: "slider" }, html("span", {}, label), output, input);
  }

  // --- a landscape: contours, paths, a start that can be dragged, losses below ------------------
  const W = 560, H = 420, LEFT = 46, BOTTOM = 40, TOP = 8, RIGHT = 10, LOSS = 230;
  const [[x0, x1], [y0, y1]] = data.window;
  const px = (x) => LEFT + (W - LEFT - RIGHT) * (x - x0) / (x1 - x0);
  const py = (y) => H - BOTTOM - (H - BOTTOM - TOP) * (y - y0) / (y1 - y0);
  const clip = (value) => Math.max(-1e5, Math.min(1e5, value)); // far outside the frame is far enough

  function frame(name, height, bottom) {
    const box = { x: LEFT, y: TOP, width: W - LEFT - RIGHT, height: height - bottom - TOP };
    return [svg("clipPath", { id: name }, svg("rect", box)), svg("rect", { ...box, class: "ground" })];
  }
  const polyline = (points, method, name) => svg("polyline", {
    points: points.map(([x, y]) => `${clip(x).toFixed(2)},${clip(y).toFixed(2)}`).join(" "),
    class: "path", style: `stroke: ${colour(method)}; stroke-dasharray: ${dash(method)}`, "clip-path": `url(#${name})`,
  });

  function drawMap(landscape, { curvature, runs }) {
    const name = `map-${landscape.name}`, [cx, cy] = landscape.minimum;
    const parts = frame(name, H, BOTTOM);
    const corner = Math.max(...[x0, x1].flatMap((x) => [y0, y1].map((y) => loss(curvature, landscape.minimum, [x, y]))));
    for (let k = 0; k <= 8; k++) {
      const level = corner * 10 ** (-k / 2);
      parts.push(svg("ellipse", { cx: px(cx), cy: py(cy), class: "contour", "clip-path": `url(#${name})`,
        rx: px(Math.sqrt(2 * level / curvature[0])) - px(0), ry: py(0) - py(Math.sqrt(2 * level / curvature[1])) }));
    }
    for (let x = Math.ceil(x0); x <= x1; x++) parts.push(svg("text", { x: px(x), y: H - BOTTOM + 18, "text-anchor": "middle" }, String(x)));
    for (let y = Math.ceil(y0); y <= y1; y++) parts.push(svg("text", { x: LEFT - 8, y: py(y) + 4, "text-anchor": "end" }, String(y)));
    parts.push(svg("text", { x: (LEFT + W) / 2, y: H - 6, "text-anchor": "middle" }, "θ₁"),
      svg("text", { x: 2, y: (H - BOTTOM) / 2 }, "θ₂"));
    for (const method of data.methods) {
      if (hidden.has(method)) continue;
      const points = runs[method].slice(0, upTo + 1).map(([x, y]) => [px(x), py(y)]);
      parts.push(polyline(points, method, name));
      const [x, y] = points[points.length - 1].map(clip);
      parts.push(svg("circle", { cx: x, cy: y, r: 5, style: `fill: ${colour(method)}`, "clip-path": `url(#${name})` }));
    }
    parts.push(svg("path", { class: "minimum", d: star(px(cx), py(cy), 9) }));
    const start = landscape.settings.start;
    parts.push(svg("circle", { class: "start", r: 8, cx: px(start[0]), cy: py(start[1]), tabindex: 0, role: "slider",
      "aria-label": "start point; arrow keys move it", "aria-valuetext": `θ₁ ${short(start[0])}, θ₂ ${short(start[1])}` }));
    const focused = document.activeElement && document.activeElement.closest && landscape.map.contains(document.activeElement);
    landscape.map.replaceChildren(...parts);
    if (focused) landscape.map.querySelector(".start").focus();
  }
  function star(x, y, size) {
    const corners = [...Array(10).keys()].map((i) => {
      const r = i % 2 ? size * 0.45 : size, angle = Math.PI * (i / 5 - 0.5);
      return `${(x + r * Math.cos(angle)).toFixed(1)} ${(y + r * Math.sin(angle)).toFixed(1)}`;
    });
    return `M${corners.join("L")}Z`;
  }

  function drawLoss(landscape, { curvature, runs }) {
    const name = `loss-${landscape.name}`, floor = 1e-9;
    const value = (point) => Math.max(loss(curvature, landscape.minimum, point), floor);
    const begin = value(landscape.settings.start);
    const lowest = Math.min(...data.methods.map((method) => Math.min(...runs[method].map(value))));
    const top = Math.ceil(Math.log10(begin) + 0.3), bottom = Math.floor(Math.log10(lowest));
    const lx = (t) => LEFT + (W - LEFT - RIGHT) * t / shared.steps;
    const ly = (v) => LOSS - BOTTOM - (LOSS - BOTTOM - TOP) * (Math.log10(v) - bottom) / (top - bottom);
    const parts = frame(name, LOSS, BOTTOM);
    const every = Math.max(1, Math.ceil((top - bottom) / 5));
    for (let e = bottom; e <= top; e += every) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: W - RIGHT, y1: ly(10 ** e), y2: ly(10 ** e) }),
        svg("text", { x: LEFT - 6, y: ly(10 ** e) + 4, "text-anchor": "end" }, e === 0 ? "1" : `1e${e}`));
    }
    for (let i = 0; i <= 4; i++) {
      const t = Math.round(shared.steps * i / 4);
      parts.push(svg("text", { x: lx(t), y: LOSS - BOTTOM + 18, "text-anchor": i === 4 ? "end" : "middle" }, String(t)));
    }
    parts.push(svg("text", { x: (LEFT + W) / 2, y: LOSS - 5, "text-anchor": "middle" }, "step; the loss f(θ) on a log axis"));
    for (const method of data.methods) {
      if (hidden.has(method)) continue;
      parts.push(polyline(runs[method].slice(0, upTo + 1).map((point, t) => [lx(t), ly(value(point))]), method, name));
    }
    landscape.losses.replaceChildren(...parts);
  }

  function drawEnds(landscape, { curvature, runs }) {
    const rows = data.methods.filter((method) => !hidden.has(method)).map((method) => {
      const points = runs[method], last = points[Math.min(upTo, points.length - 1)];
      const gone = points.length <= shared.steps && upTo >= points.length - 1;
      const swatch = html("span", { class: "swatch", style: `--colour: ${colour(method)}` });
      return html("tr", {}, html("th", { scope: "row" }, swatch, method),
        ...(gone ? [html("td", { colspan: 3 }, `diverged at step ${points.length - 1}`)]
          : [last[0], last[1], loss(curvature, landscape.minimum, last)].map((v) => html("td", {}, short(v)))));
    });
    const head = html("tr", {}, ...[`at step ${upTo}`, "θ₁", "θ₂", "loss"].map((t) => html("th", { scope: "col" }, t)));
    landscape.ends.replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows));
  }

  function draw() {
    const shown = document.getElementById("shown");
    shown.max = shared.steps;
    upTo = Math.min(upTo, shared.steps);
    shown.value = upTo;
    document.querySelector("output[for=shown]").value = upTo;
    for (const landscape of landscapes) {
      const found = run(landscape);
      landscape.found = found;
      const [a, b] = found.curvature.map(short);
      landscape.note.textContent = `Hessian diag(${a}, ${b}); GD is stable below η = ${short(2 / Math.max(...found.curvature))}`;
      drawMap(landscape, found);
      drawLoss(landscape, found);
      drawEnds(landscape, found);
    }
  }

  // --- building the page -----------------------------------------------------------------------
  function dragging(landscape) {
    const { map, settings } = landscape;
    const place = (event) => {
      const box = map.getBoundingClientRect(), scale = W / box.width;
      const x = x0 + ((event.clientX - box.left) * scale - LEFT) / (W - LEFT - RIGHT) * (x1 - x0);
      const y = y0 + (H - BOTTOM - (event.clientY - box.top) * scale) / (H - BOTTOM - TOP) * (y1 - y0);
      move([x, y]);
    };
    const move = ([x, y]) => {
      const within = (v, low, high) => Number(Math.max(low, Math.min(high, v)).toFixed(2));
      settings.start = [within(x, x0, x1), within(y, y0, y1)];
      draw();
    };
    map.addEventListener("pointerdown", (event) => {
      map.setPointerCapture(event.pointerId);
      place(event);
      event.preventDefault();
    });
    map.addEventListener("pointermove", (event) => { if (map.hasPointerCapture(event.pointerId)) place(event); });
    map.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: [-0.05, 0], ArrowRight: [0.05, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }[event.key];
      if (!by) return;
      move(settings.start.map((v, i) => v + by[i]));
      event.preventDefault();
    });
  }
  function build(landscape) {
    const { settings, name } = landscape;
    landscape.note = html("p", { class: "note" });
    landscape.map = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "group", "aria-label": `paths, ${landscape.title}` });
    landscape.losses = svg("svg", { viewBox: `0 0 ${W} ${LOSS}`, role: "img", "aria-label": `losses, ${landscape.title}` });
    landscape.ends = html("table", { class: "ends" });
    const lr = (key, label, range) => slider(`${key}-${name}`, label,
      { ...range, log: true, get: () => settings[key], set: (value) => { settings[key] = value; } });
    const sliders = html("div", { class: "sliders" },
      slider(`anisotropy-${name}`, "anisotropy λ₁/λ₂", { min: 1, max: 1e5, log: true,
        get: () => landscape.anisotropy, set: (value) => { landscape.anisotropy = value; } }),
      lr("lr_gd", "learning rate of GD", { min: 1e-4, max: 3 }),
      lr("lr_sign", "learning rate of SignGD", { min: 1e-3, max: 1 }),
      lr("lr_lpsgd", "learning rate of LPSGD", { min: 1e-4, max: 3 }));
    const title = landscape.title[0].toUpperCase() + landscape.title.slice(1);
    document.getElementById("landscapes").append(html("section", { class: "landscape", id: name },
      html("h2", {}, title), landscape.note, landscape.map, landscape.losses, landscape.ends, sliders));
    dragging(landscape);
  }
  for (const method of data.methods) {
    const button = html("button", { type: "button", "aria-pressed": "true" });
    button.style.setProperty("--colour", colour(method));
    button.append(html("span", { class: "swatch" }), method);
    button.addEventListener("click", () => {
      if (!hidden.delete(method)) hidden.add(method);
      button.setAttribute("aria-pressed", String(!hidden.has(method)));
      draw();
    });
    document.getElementById("toggles").append(button);
  }
  document.getElementById("shared").append(
    slider("p_max", "p_max (2 is GD, large is SignGD)", { min: 2, max: 100, log: true,
      get: () => shared.p_max, set: (value) => { shared.p_max = Math.max(2, value); } }),
    slider("steps", "steps", { min: 10, max: 1000, log: true,
      get: () => shared.steps, set: (value) => {
        const all = upTo === shared.steps;
        shared.steps = Math.round(value);
        if (all) upTo = shared.steps;
      } }));
  landscapes.forEach(build);

  // --- playing, saving ------------------------------------------------------------------
  const play = document.getElementById("play");
  let playing = null;
  function stop() {
    cancelAnimationFrame(playing);
    playing = null;
    play.textContent = "Play";
  }
  play.addEventListener("click", () => {
    if (playing !== null) { stop(); return; }
    if (upTo >= shared.steps) upTo = 0;
    const from = upTo, began = performance.now();
    play.textContent = "Pause";
    const tick = (now) => { // the whole descent takes six seconds, whatever its length
      upTo = Math.min(shared.steps, from + Math.floor((now - began) / 6000 * shared.steps));
      draw();
      if (upTo >= shared.steps) stop(); else playing = requestAnimationFrame(tick);
    };
    playing = requestAnimationFrame(tick);
  });
  document.getElementById("shown").addEventListener("input", (event) => {
    if (playing !== null) stop();
    upTo = Number(event.target.value);
    draw();
  });
  function csv() {
    const lines = ["quadratic,method,step,theta_1,theta_2,loss"];
    for (const { name, minimum, found } of landscapes)
      for (const method of data.methods)
        found.runs[method].forEach((point, step) =>
          lines.push([name, `"${method}"`, step, ...point, loss(found.curvature, minimum, point)].join(",")));
    return lines.join("\n") + "\n";
  }
  document.getElementById("save").addEventListener("click", () => {
    const link = html("a", { download: "fig3.csv", href: URL.createObjectURL(new Blob([csv()], { type: "text/csv" })) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });

  draw();
})();
