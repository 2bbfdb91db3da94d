// The report's charts: drawn when they come into view, in the reader's colours, by mouse, touch or keyboard.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const OPERANDS = [
    "forward.input", "forward.weight", "grad_input.grad_output", "grad_input.weight",
    "grad_weight.grad_output", "grad_weight.input",
  ];
  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000];
  const LONGEST = 22; // letters of a layer's name on an axis; its end tells it from the others
  const MOST_DOTS = 30; // points of a line that are marked; one alone would be no line
  const LEAST_GAP = 4; // pixels between lines of a grid; closer ones would be a grey area
  const charts = new Map(); // figure -> {describe, plot, whole}

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const short = (value) => (value == null ? "–" : String(Number(value.toPrecision(4))));

  function make(tag, text, attributes = {}) {
    const element = document.createElement(tag);
    if (text) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // Series with x values of their own become columns over all x values; what one lacks is null.
  function columns(series) {
    const x = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    const place = new Map(x.map((value, index) => [value, index]));
    return [x, ...series.map((one) => {
      const y = Array(x.length).fill(null);
      one.x.forEach((value, index) => { y[place.get(value)] = one.y[index]; });
      return y;
    })];
  }

  function axis(extra) {
    return {
      stroke: colour("soft"), font: "12px system-ui, sans-serif",
      grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, ...extra,
    };
  }

  // Names of layers are written upwards, as many as there is space for.
  function xAxis(found) {
    if (!found.xWords) return axis(found.bars ? {} : { incrs: WHOLE });
    const shown = (name) => (name.length > LONGEST ? `…${name.slice(1 - LONGEST)}` : name);
    return axis({
      incrs: WHOLE, rotate: -90, space: 15, size: found.xSize, font: "11px system-ui, sans-serif",
      values: (_u, places) => places.map((place) => shown(found.xWords(place))),
    });
  }

  function height(found) {
    return 240 + (found.xSize ?? 50) - 50;
  }

  function options(found, width, whole) {
    const around = found.dots ? 0.5 : 0; // points at the edge of the area are hard to see
    return {
      width, height: height(found),
      scales: {
        x: { time: false, range: (_u, low, high) => (low === high ? [low - 1, high + 1] : [low - around, high + around]) },
        ...(found.zoom && !whole ? { y: { range: () => found.zoom } } : {}),
      },
      axes: [xAxis(found), axis({ size: 58, values: (_u, values) => values.map(short) })],
      cursor: { points: { size: 7 } },
      legend: { markers: { dash: (_u, index) => (index && found.series[index - 1].dashed ? "dashed" : "solid") } },
      series: [
        { label: found.xLabel, value: (_u, x) => (x == null ? "–" : found.xWords ? found.xWords(x) : short(x)) },
        ...found.series.map((one) => ({
          label: one.label, stroke: colour(one.colour), width: 2, spanGaps: true,
          dash: one.dashed ? [5, 4] : undefined,
          fill: found.bars ? colour(one.colour) + "66" : undefined,
          paths: found.bars ? uPlot.paths.bars({ size: [1, 100] }) : found.dots ? () => null : undefined,
          points: { show: !found.bars && (found.dots || one.x.length <= MOST_DOTS), size: found.dots ? 8 : 6, fill: colour(one.colour) },
          value: (_u, y) => short(y),
        })),
      ],
      hooks: { draw: [(plot) => drawLines(plot, found)] },
    };
  }

  // A line at each level of the grid, or, where they are too close, at its ends; and one at the chosen layer.
  function drawLines(plot, { grid, mark }) {
    const at = (x) => plot.valToPos(x, "x", true);
    if (mark) drawLine(plot, at(mark()), "accent", 0.6);
    if (!grid) return;
    const { lowest, highest } = grid;
    const close = (at(lowest + 1) - at(lowest)) / devicePixelRatio < LEAST_GAP;
    for (let level = lowest; level <= highest; level += close ? highest - lowest : 1)
      drawLine(plot, at(level), "c1", level === lowest || level === highest ? 1 : 0.45);
  }

  function drawLine({ ctx, bbox }, x, name, alpha) {
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.save();
    ctx.strokeStyle = colour(name);
    ctx.lineWidth = devicePixelRatio;
    ctx.globalAlpha = alpha;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  function draw(figure) {
    const chart = charts.get(figure);
    const found = chart.describe();
    const place = figure.querySelector(".plot");
    if (chart.plot) chart.plot.destroy();
    chart.plot = null;
    place.replaceChildren();
    figure.querySelectorAll("details, .remark, figcaption button").forEach((old) => old.remove());
    if (!found) return;
    const columned = columns(found.series);
    const plot = new uPlot(options(found, place.clientWidth, chart.whole), columned, place);
    chart.plot = plot;
    if (found.zoom) figure.querySelector("figcaption").append(zoomButton(figure, chart));
    reserveLegend(plot, found);
    if (found.remark) figure.append(make("p", found.remark, { class: "remark" }));
    figure.append(asTable(figure, found, columned));
    legendByKeyboard(plot);
    cursorByKeyboard(place, plot, found);
    if (found.pick) plot.over.addEventListener("click", () => pickAt(plot, found));
  }

  function zoomButton(figure, chart) {
    const button = make("button", chart.whole ? "Last epochs" : "Whole range", { type: "button" });
    button.onclick = () => {
      chart.whole = !chart.whole;
      draw(figure);
      figure.querySelector("figcaption button").focus();
    };
    return button;
  }

  // The legend shows the values under the cursor: space for the longest, so that nothing moves.
  function reserveLegend(plot, found) {
    if (!found.xWords) return;
    const longest = Math.max(...plot.data[0].map((x) => found.xWords(x).length));
    plot.root.querySelector(".u-legend .u-value").style.width = `${longest + 1}ch`;
  }

  function pickAt(plot, found) {
    if (plot.cursor.idx != null) found.pick(plot.data[0][plot.cursor.idx]);
  }

  function cursorByKeyboard(place, plot, found) {
    place.onkeydown = (event) => {
      const last = plot.data[0].length - 1;
      const now = plot.cursor.idx ?? -1;
      const next = { ArrowRight: Math.min(now + 1, last), ArrowLeft: Math.max(now - 1, 0), Home: 0, End: last }[event.key];
      if (event.key === "Enter" && found.pick && event.target === place) return pickAt(plot, found);
      if (next === undefined) return;
      event.preventDefault();
      plot.setCursor({ left: plot.valToPos(plot.data[0][next], "x"), top: plot.over.clientHeight / 2 });
    };
  }

  function legendByKeyboard(plot) {
    plot.root.querySelectorAll(".u-legend .u-series").forEach((row, index) => {
      if (index === 0) return; // the x axis cannot be switched off
      const button = row.querySelector("th");
      button.tabIndex = 0;
      button.setAttribute("role", "button");
      button.onkeydown = (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        event.stopPropagation();
        button.click();
      };
    });
  }

  // The same numbers as a table, made when it is opened.
  function asTable(figure, found, columned) {
    const box = make("details");
    box.append(make("summary", "As a table"));
    box.addEventListener("toggle", () => {
      if (!box.open || box.children.length > 1) return;
      const table = make("table");
      table.append(make("caption", figure.querySelector("figcaption").textContent));
      const head = table.createTHead().insertRow();
      for (const title of [found.xLabel, ...found.series.map((one) => one.label)]) head.append(make("th", title, { scope: "col" }));
      const body = table.createTBody();
      columned[0].forEach((x, index) => {
        const row = body.insertRow();
        row.append(make("th", found.xWords ? found.xWords(x) : short(x), { scope: "row" }));
        for (const y of columned.slice(1)) row.append(make("td", short(y[index]), { class: "number" }));
      });
      const frame = make("div", "", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers of the chart" });
      frame.append(table);
      box.append(frame);
    });
    return box;
  }

  const view = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      view.unobserve(entry.target);
      draw(entry.target);
    }
  }, { rootMargin: "400px" });

  function show(figure) {
    figure.hidden = !charts.get(figure).describe();
    view.unobserve(figure);
    if (!figure.hidden) view.observe(figure);
  }

  function add(id, describe) {
    const figure = document.getElementById(`chart-${id}`);
    if (!figure) return;
    charts.set(figure, { describe, plot: null, whole: false });
    const place = figure.querySelector(".plot");
    const name = figure.querySelector("figcaption").textContent;
    for (const [key, value] of Object.entries({ tabindex: "0", role: "group", "aria-label": `Chart: ${name}. Arrow keys move through it.` }))
      place.setAttribute(key, value);
    show(figure);
  }

  for (const curve of data.curves)
    add(curve.id, () => ({
      xLabel: "epoch", zoom: curve.zoom,
      series: curve.series.map((one) => ({ ...one, colour: `c${one.run % 8}` })),
    }));

  const runChoice = document.getElementById("run");
  const layerChoice = document.getElementById("layer");
  const glance = document.getElementById("chart-glance");
  const chosen = () => data.layers[Number(runChoice.value)];
  const operandsOfLayer = () => chosen().operands[Number(layerChoice.value)] || {};
  const operandColour = (operand) => `c${Math.max(OPERANDS.indexOf(operand), 0)}`;

  function overEpochs(quantities, wanted = () => true) {
    const series = [];
    for (const [operand, numbers] of Object.entries(operandsOfLayer()))
      for (const [quantity, words] of Object.entries(quantities))
        if (numbers[quantity] && wanted(operand))
          series.push({
            label: words ? `${operand} ${words}` : operand, x: chosen().epochs, y: numbers[quantity],
            colour: operandColour(operand), dashed: words === "clipped",
          });
    return series.length ? { xLabel: "epoch", series } : null;
  }

  function atAGlance() {
    const { operands, names } = chosen();
    const series = OPERANDS.map((operand) => {
      const points = operands
        .map((one, index) => [index, one[operand]?.sqnr?.findLast((y) => y != null)])
        .filter(([, y]) => y != null);
      return { label: operand, x: points.map(([x]) => x), y: points.map(([, y]) => y), colour: operandColour(operand) };
    }).filter((one) => one.x.length);
    if (!series.length) return null;
    const pick = (index) => { layerChoice.value = String(index); layerChanged(); };
    const xSize = 20 + 6 * Math.min(LONGEST, Math.max(...names.map((name) => name.length)));
    return { xLabel: "layer", xWords: (index) => names[index] ?? "", xSize, series, pick, dots: true, mark: () => Number(layerChoice.value) };
  }

  function histogram(which) {
    const found = chosen()[which][Number(layerChoice.value)];
    if (!found) return null;
    const onGrid = found.lowest !== undefined;
    const levels = (found.highest - found.lowest) / (found.spacing ?? 1) + 1;
    const remark = onGrid
      ? `In steps of the grid, from ${found.lowest} to ${found.highest}: ${found.dead} of ${levels} levels unused, ` +
        `${short(100 * found.clipped)} % clipped.`
      : "Plain values: on no grid.";
    return {
      xLabel: onGrid ? "steps" : "value", bars: true, remark, grid: onGrid ? found : null,
      series: [{
        label: "values", colour: "c0", y: found.counts,
        x: found.counts.map((_, index) => found.start + (index + 0.5) * found.width),
      }],
    };
  }

  const LAYER_CHARTS = {
    sqnr: () => overEpochs({ sqnr: "" }),
    scale: () => overEpochs({ scale: "" }),
    lost: () => overEpochs({ underflowed: "became 0", clipped: "clipped" }),
    oscillation: () => overEpochs({ oscillating: "oscillating", frozen: "frozen" }),
    gain: () => overEpochs({ gain: "" }, (operand) => operand.endsWith("grad_output")),
    weights: () => histogram("weights"),
    inputs: () => histogram("inputs"),
    grad_input: () => histogram("grad_input"),
    grad_weight: () => histogram("grad_weight"),
  };

  function layerChanged() {
    for (const id of Object.keys(LAYER_CHARTS)) show(document.getElementById(`chart-${id}`));
    charts.get(glance).plot?.redraw(); // the line at the chosen layer
  }

  function runChanged() {
    layerChoice.replaceChildren(...chosen().names.map((name, index) => make("option", name, { value: index })));
    show(glance);
    layerChanged();
  }

  if (runChoice) {
    // First the run that has most to show: curves of its layers, else a grid, else weights at all.
    const ways = [
      (run) => run.operands.some((operands) => Object.keys(operands).length),
      (run) => run.weights.some((weights) => weights?.lowest !== undefined),
      (run) => run.names.length,
    ];
    runChoice.value = String(ways.map((way) => data.layers.findIndex(way)).find((index) => index >= 0));
    runChoice.addEventListener("change", runChanged);
    layerChoice.addEventListener("change", layerChanged);
    for (const [id, describe] of Object.entries({ glance: atAGlance, ...LAYER_CHARTS })) add(id, describe);
    runChanged();
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const [figure, chart] of charts) if (chart.plot) draw(figure);
  });
  // A table that is wider than its frame says so, and has a shadow where there is more of it.
  function hint(frame) {
    const hidden = frame.scrollWidth - frame.clientWidth;
    frame.classList.toggle("wide", hidden > 2);
    frame.classList.toggle("more", hidden - frame.scrollLeft > 2);
  }
  const frames = document.querySelectorAll("main section > .scroll, main details > .scroll");
  for (const frame of frames) frame.addEventListener("scroll", () => hint(frame), { passive: true });
  for (const box of document.querySelectorAll("main details"))
    box.addEventListener("toggle", () => box.querySelectorAll(".scroll").forEach(hint));

  async function copy(text, source) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not allowed here: as if selected by hand
      getSelection().selectAllChildren(source);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
  }
  for (const box of document.querySelectorAll(".command")) {
    const source = box.querySelector("code");
    const button = make("button", "Copy", { type: "button", "aria-label": `Copy: ${source.textContent}` });
    button.onclick = async () => {
      await copy(source.textContent, source);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    box.append(button);
  }

  new ResizeObserver(() => {
    frames.forEach(hint);
    for (const [figure, { plot }] of charts)
      if (plot && plot.width !== figure.querySelector(".plot").clientWidth)
        plot.setSize({ width: figure.querySelector(".plot").clientWidth, height: plot.height });
  }).observe(document.body);
})();
