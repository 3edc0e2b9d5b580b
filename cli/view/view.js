// The page: columns of runs with one view and one instant, themes, printing.
const themes = {
  light: {
    text: "#1d242c", muted: "#5b6672", dim: "#d5d9de", reserved: "#e3e7ec", region: "#9aa3ad", grid: "#e3e7ec",
    edge: "rgba(255,255,255,.55)", hatch: "rgba(0,0,0,.35)", peak: "#b3261e", failure: "#b3261e", instant: "#0b57d0",
  },
  dark: {
    text: "#e6eaee", muted: "#9aa6b2", dim: "#3a424b", reserved: "#2c333b", region: "#5d6873", grid: "#2c333b",
    edge: "rgba(0,0,0,.5)", hatch: "rgba(0,0,0,.45)", peak: "#ff8a80", failure: "#ff8a80", instant: "#8ab4f8",
  },
};

// The state of the page. `view` and `instant` hold for all columns; times are events, heights are bytes.
const page = {
  font: "system-ui, sans-serif", columns: [], roles: [], phases: [], frames: [],
  view: { t0: 0, t1: 1, y0: 0, y1: 1 }, instant: 0, hover: null, mode: "role", find: "",
  theme: themes.light, themeName: "light", forced: "",
};
const byId = (id) => document.getElementById(id);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// --- time, instants, redrawing

let frameAsked = false, hurriedUntil = 0, curvesTimer = 0, instantTimer = 0, mapsDirty = false;

function redraw(maps = true) {
  mapsDirty = mapsDirty || maps;
  if (frameAsked) return;
  frameAsked = true;
  requestAnimationFrame(() => {
    frameAsked = false;
    const start = performance.now(), hurried = start < hurriedUntil;
    for (const c of page.columns) {
      if (mapsDirty) c.map.draw(hurried);
      c.map.drawOverlay();
    }
    page.frames.push({ ms: performance.now() - start, path: mapsDirty ? page.columns[0]?.map.path : "overlay" });
    if (page.frames.length > 2000) page.frames.splice(0, 1000);
    mapsDirty = false;
  });
}

// The view has moved: maps at once, fine maps and curves when the hand rests.
function moved() {
  hurriedUntil = performance.now() + 90;
  redraw();
  clearTimeout(curvesTimer);
  curvesTimer = setTimeout(() => {
    hurriedUntil = 0;
    redraw();
    for (const c of page.columns) c.curves.update();
  }, 100);
}

function setView(t0, t1, y0, y1) {
  const span = clamp(t1 - t0, Math.min(8, page.events), page.events);
  const height = clamp(y1 - y0, Math.min(2048, page.lanes), page.lanes * 1.02);
  t0 = clamp(t0, 0, page.events - span);
  y0 = clamp(y0, 0, page.lanes * 1.02 - height);
  page.view = { t0, t1: t0 + span, y0, y1: y0 + height };
  moved();
}

function zoomTime(factor, around = (page.view.t0 + page.view.t1) / 2) {
  const v = page.view;
  setView(around - (around - v.t0) * factor, around + (v.t1 - around) * factor, v.y0, v.y1);
}
function zoomAddress(factor, around = (page.view.y0 + page.view.y1) / 2) {
  const v = page.view;
  setView(v.t0, v.t1, around - (around - v.y0) * factor, around + (v.y1 - around) * factor);
}
const showAll = () => setView(0, page.events, 0, page.lanes * 1.02);

function setInstant(t, follow = false) {
  page.instant = clamp(Math.round(t), 0, Math.max(0, page.events - 1));
  const v = page.view;
  if (follow && (page.instant < v.t0 || page.instant + 1 > v.t1)) {
    const span = v.t1 - v.t0;
    setView(page.instant - span / 2, page.instant + span / 2, v.y0, v.y1);
  }
  redraw(false);
  clearTimeout(instantTimer);
  instantTimer = setTimeout(drawInstant, 30);
}

function drawInstant() {
  for (const c of page.columns) {
    c.bars.draw(c.map.colours);
    c.holders.draw();
    c.curves.drawMarks();
    const run = c.run, t = Math.min(page.instant, run.events - 1);
    c.event.textContent = t < 0 ? "no events"
      : `event ${countText(t)} of ${countText(run.events)}: ${run.eventText(t)} (${run.scopeText(t)})`;
  }
  byId("status").textContent = page.columns[0].event.textContent;
}

function toStep(direction) {
  const run = page.columns[0].run, at = run.scopeAt(page.instant);
  let s = at;
  if (direction > 0) {
    while (s < run.scope_step.length && run.scope_step[s] === run.scope_step[at]) s++;
  } else {
    while (s >= 0 && run.scope_step[s] === run.scope_step[at]) s--;
    while (s > 0 && run.scope_step[s - 1] === run.scope_step[s]) s--;
  }
  if (s >= 0 && s < run.scope_begin.length) setInstant(run.scope_begin[s], true);
}

function toFailure() {
  const all = page.columns.flatMap((c) => [...c.run.failed_event]).sort((a, b) => a - b);
  if (all.length > 0) setInstant(all.find((t) => t > page.instant) ?? all[0], true);
}

// --- columns

function makeColumn(run) {
  const section = element("section", { class: "run", "aria-label": run.title });
  const canvas = element("canvas");
  const overlay = element("canvas", { tabindex: "0", role: "img",
    "aria-label": `Map of memory over time, ${run.title}. Arrows move the instant; the tables below describe it.` });
  const figures = [["peak live", bytesText(run.peak.live)], ["peak reserved", bytesText(run.reserved_peak.reserved)],
    ["live / reserved", percentText(run.reserved_peak.reserved > 0 ? run.peak.live / run.reserved_peak.reserved : 0)],
    ["device calls", countText(run.device_calls)], ["retries", countText(run.retries)],
    ["failed", countText(run.failed_event.length)],
    ["capacity", run.capacity ? bytesText(run.capacity) : "no limit"]];
  if (!run.completed) figures.push(["ended", `at event ${countText(run.events - 1)}: out of memory`]);
  const roleCanvas = element("canvas", { role: "img", "aria-label": "Live bytes by role over time" });
  const gapCanvas = element("canvas", { role: "img", "aria-label": "Reserved, allocated and free bytes over time" });
  const barCanvas = element("canvas", { class: "bars", role: "img", "aria-label": "Segments at the chosen instant" });
  const caption = element("span"), ledger = element("dl", { class: "figures" });
  const group = element("select", { "aria-label": "Holders by" },
    ...["tensor", "layer", "op", "role"].map((g) => element("option", { value: g }, g)));
  const heads = ["holder", "role", "bytes", "of live", "blocks", "age"].map((head, n) =>
    element("th", { scope: "col", ...(n > 1 ? { class: "number" } : {}) }, head));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody"));
  const legend = element("ul", { class: "legend" }), event = element("p", { class: "event" });
  const phases = [...new Set(run.scope_phase)].sort().map((phase) => {
    const swatch = element("span", { class: "swatch" });
    swatch.style.background = phaseColours[phase];
    return element("li", {}, swatch, phase === 0 ? "no phase" : page.phases[phase]);
  });
  const notes = run.notes.map((note) => element("p", { class: "note" }, note));
  section.append(element("h2", {}, run.title),
    element("dl", { class: "figures" }, ...figureList(figures)), ...notes,
    element("div", { class: "map" }, canvas, overlay), legend,
    element("ul", { class: "legend" }, element("li", {}, "ribbon above the map:"), ...phases), event,
    element("h3", {}, "Live bytes by role"), element("div", { class: "chart" }, roleCanvas),
    element("h3", {}, "Fragmentation"), element("div", { class: "chart" }, gapCanvas),
    element("h3", {}, "At the chosen instant: ", caption), barCanvas, ledger,
    element("h3", {}, "Holders by ", group), table);
  byId("runs").append(section);
  const column = {
    run, section, legend, event, map: new MemoryMap(run, canvas, overlay),
    curves: new Curves(run, roleCanvas, gapCanvas), bars: new SegmentBars(run, barCanvas, caption),
    holders: new Holders(run, ledger, table),
  };
  column.map.hovered = -1;
  group.addEventListener("change", () => {
    column.holders.group = group.value;
    column.holders.draw();
  });
  attachPointer(column);
  return column;
}

function recolour() {
  for (const c of page.columns) {
    c.map.setColours(new Colours(c.run, page.mode, page.find, page.theme));
    const entries = c.map.colours.legend, limit = 14;
    c.legend.replaceChildren(...entries.slice(0, limit).map(({ text, colour }) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = colour;
      return element("li", {}, swatch, text);
    }), ...(entries.length > limit ? [element("li", {}, `and ${entries.length - limit} more`)] : []),
    element("li", {}, element("span", { class: "swatch free" }), "free in a segment"),
    element("li", {}, element("span", { class: "swatch hatched" }), "rounding and slack, or pending"));
  }
  redraw();
}

function applyTheme() {
  const dark = page.forced ? page.forced === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  page.themeName = dark ? "dark" : "light";
  page.theme = themes[page.themeName];
  document.documentElement.dataset.theme = page.themeName;
  recolour();
  for (const c of page.columns) c.curves.update();
  drawInstant();
}

function resize() {
  for (const c of page.columns) {
    c.map.resize();
    c.curves.roles.resize();
    c.curves.gaps.resize();
  }
  redraw();
  drawInstant();
}

// On paper: light, as wide as a sheet, and the map as an image: a canvas made of other canvases prints as nothing.
function print(begins) {
  page.forced = begins ? "light" : byId("theme").value;
  document.body.classList.toggle("printing", begins);
  applyTheme();
  resize();
  for (const c of page.columns) {
    c.section.querySelector(".sheet")?.remove();
    c.map.draw(false);
    c.map.drawOverlay();
    if (!begins) continue;
    const sheet = newCanvas(c.map.canvas.width, c.map.canvas.height);
    for (const layer of [c.map.canvas, c.map.overlay]) sheet.getContext("2d").drawImage(layer, 0, 0);
    const image = element("img", { class: "sheet", alt: "", decoding: "sync", src: sheet.toDataURL() });
    c.map.canvas.parentElement.append(image);
  }
}

async function main() {
  const meta = JSON.parse(byId("meta").textContent);
  page.roles = meta.roles;
  page.phases = meta.phases;
  const buffer = await inflate(byId("data").textContent, meta.bytes);
  byId("data").remove();
  const runs = meta.runs.map((run) => new Run(run, buffer));
  page.events = Math.max(1, ...runs.map((run) => run.events));
  page.lanes = Math.max(4096, ...runs.map((run) => run.lanes));
  page.highestLive = Math.max(...runs.map((run) => run.peak.live));
  page.highestReserved = Math.max(...runs.map((run) => run.reserved_peak.reserved));
  page.view = { t0: 0, t1: page.events, y0: 0, y1: page.lanes * 1.02 };
  page.instant = runs[0].peak_event;
  byId("runs").dataset.columns = String(runs.length);
  page.columns = runs.map(makeColumn);
  byId("to-failure").disabled = runs.every((run) => run.failed_event.length === 0);
  for (const c of page.columns) c.map.resize();
  applyTheme();

  byId("colour").addEventListener("change", (e) => { page.mode = e.target.value; recolour(); drawInstant(); });
  byId("find").addEventListener("input", (e) => { page.find = e.target.value.trim(); recolour(); drawInstant(); });
  byId("theme").addEventListener("change", (e) => { page.forced = e.target.value; applyTheme(); });
  byId("controls").addEventListener("submit", (e) => e.preventDefault());
  byId("zoom-in").addEventListener("click", () => zoomTime(0.7, page.instant));
  byId("zoom-out").addEventListener("click", () => zoomTime(1 / 0.7, page.instant));
  byId("zoom-all").addEventListener("click", showAll);
  byId("to-peak").addEventListener("click", () => setInstant(runs[0].peak_event, true));
  byId("to-failure").addEventListener("click", toFailure);
  byId("help-button").addEventListener("click", toggleHelp);
  document.addEventListener("keydown", onKey);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  let resizeTimer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(resizeTimer);
    resizeTimer = setTimeout(resize, 60);
  });
  window.addEventListener("beforeprint", () => print(true));
  window.addEventListener("afterprint", () => print(false));
  page.ready = true;
}

// For tests: what the page shows, as plain values.
window.limpidView = {
  get ready() { return page.ready === true; },
  get frames() { return page.frames; },
  state() {
    return {
      view: page.view, instant: page.instant, theme: page.themeName, colour: page.mode, hover: page.hover,
      events: page.events, lanes: page.lanes,
      columns: page.columns.map((c) => ({
        title: c.run.title, policy: c.run.policy, events: c.run.events, rectangles: c.run.count,
        path: c.map.path, plot: c.map.plot, peak: c.run.peak, peakEvent: c.run.peak_event,
        peakFound: { t: c.run.peak_live_found.t, live: c.run.peak_live_found.live },
        instant: c.holders.state, holders: c.holders.rows, event: c.event.textContent,
        legend: c.map.colours.legend.map((entry) => entry.text),
      })),
    };
  },
  // Where the largest rectangle of the present view (with this label) lies on the screen, and what it is.
  landmark(column = 0, label = "") {
    const { map, run } = page.columns[column], v = page.view, box = map.overlay.getBoundingClientRect();
    let best = -1, area = 0;
    run.forEachIn(Math.floor(v.t0), v.t1, (i) => {
      const w = Math.min(v.t1, run.end[i]) - Math.max(v.t0, run.begin[i]);
      const h = Math.min(v.y1, run.high[i]) - Math.max(v.y0, run.low[i]);
      if (w > 0 && h > 0 && w * h > area && (!label || run.label(run.kind[i]) === label)) {
        best = i;
        area = w * h;
      }
    });
    if (best < 0) return null;
    return {
      x: box.left + map.x((Math.max(v.t0, run.begin[best]) + Math.min(v.t1, run.end[best], run.events)) / 2),
      y: box.top + map.y((Math.max(v.y0, run.low[best]) + Math.min(v.y1, run.high[best])) / 2),
      label: run.label(run.kind[best]), bytes: run.kind_requested[run.kind[best]],
    };
  },
};

main().catch((error) => {
  byId("status").textContent = `This page could not be shown: ${error.message}`;
  console.error(error);
});
