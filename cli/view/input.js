// What the pointer and the keys do.
function blockLines(run, i) {
  const k = run.kind[i], requested = run.kind_requested[k], size = run.kind_size[k];
  const died = run.died[i], end = died === kStays ? "the end" : countText(died);
  const region = run.region[i];
  const lines = [["", run.label(k)]];
  const add = (name, value) => { if (value) lines.push([name, value]); };
  add("tensor", run.names[run.kind_name[k]]);
  add("layer", run.names[run.kind_module[k]]);
  add("op", run.names[run.kind_op[k]]);
  add("role", page.roles[run.kind_role[k]] + (run.kind_pending[k] ? ", freed, waits for another stream" : ""));
  const block = size > requested ? `, block ${bytesText(size)}` : "";
  add("size", `${bytesText(requested)} (${countText(requested)} B)${block}`);
  const length = Math.min(died, run.events) - run.born[i];
  add("life", `events ${countText(run.born[i])} to ${end}, ${countText(length)} long`);
  add("allocated in", `${run.scopeText(run.born[i])}`);
  add("where", `${regionText(run, region)}, offset ${bytesText(run.offset[i])}`);
  add("address", "0x" + (run.region_address[region] + run.offset[i]).toString(16));
  if (run.streams.length > 1) add("stream", run.streams[run.kind_stream[k]]);
  return lines;
}

function regionText(run, r) {
  const what = run.region_is_range[r] ? "range" : "segment", pool = ["small", "large"][run.region_pool[r]];
  const stream = run.streams.length > 1 ? `, stream ${run.streams[run.region_stream[r]]}` : "";
  return `${what} ${r} (${pool} pool, ${bytesText(run.region_size[r])}${stream})`;
}

function regionLines(run, r) {
  const end = run.region_end[r] === kStays ? "the end" : countText(run.region_end[r]);
  return [["", "free"], ["where", regionText(run, r)], ["life", `events ${countText(run.region_begin[r])} to ${end}`],
    ["address", "0x" + run.region_address[r].toString(16)]];
}

function showTooltip(lines, x, y) {
  const tip = byId("tooltip");
  if (!lines) {
    tip.hidden = true;
    page.hover = null;
    return;
  }
  tip.replaceChildren(...lines.map(([name, value]) => (name === ""
    ? element("strong", {}, value) : element("div", {}, element("span", {}, name), value))));
  tip.hidden = false;
  const w = tip.offsetWidth, h = tip.offsetHeight;
  tip.style.left = clamp(x + 14, 4, Math.max(4, window.innerWidth - w - 8)) + "px";
  tip.style.top = (y + 16 + h > window.innerHeight ? Math.max(4, y - h - 10) : y + 16) + "px";
  page.hover = Object.fromEntries(lines.map(([name, value]) => [name || "title", value]));
}

function attachPointer(column) {
  const { map, run } = column, canvas = map.overlay;
  let drag = null;
  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const { x, y } = local(event), factor = Math.exp(clamp(event.deltaY, -200, 200) * 0.0022);
    if (event.ctrlKey || event.altKey) zoomAddress(factor, map.byteAt(y));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const shift = (event.deltaX || event.deltaY) / map.plot.w * (page.view.t1 - page.view.t0), v = page.view;
      setView(v.t0 + shift, v.t1 + shift, v.y0, v.y1);
    } else zoomTime(factor, map.timeAt(x));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    canvas.setPointerCapture(event.pointerId);
    drag = { ...local(event), view: { ...page.view }, far: false, box: event.shiftKey };
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = local(event);
    if (drag) {
      drag.far = drag.far || Math.hypot(x - drag.x, y - drag.y) > 4;
      if (!drag.far) return;
      showTooltip(null);
      map.hovered = -1;
      if (drag.box) {
        map.box = { x0: drag.x, y0: drag.y, x1: x, y1: y };
        redraw(false);
        return;
      }
      const v = drag.view;
      const dt = (drag.x - x) / map.plot.w * (v.t1 - v.t0), dy = (y - drag.y) / map.plot.h * (v.y1 - v.y0);
      setView(v.t0 + dt, v.t1 + dt, v.y0 + dy, v.y1 + dy);
      return;
    }
    const t = Math.floor(map.timeAt(x)), b = map.byteAt(y);
    const i = map.inPlot(x, y) ? run.at(t, b) : -1;
    const r = i < 0 && map.inPlot(x, y) ? run.regionAt(t, b) : -1;
    showTooltip(i >= 0 ? blockLines(run, i) : r >= 0 ? regionLines(run, r) : null, event.clientX, event.clientY);
    if (map.hovered !== i) {
      map.hovered = i;
      redraw(false);
    }
  });
  const stop = (event) => {
    if (!drag) return;
    const { x, y } = local(event), box = map.box;
    map.box = null;
    if (!drag.far) setInstant(map.timeAt(x) - 0.5);
    else if (box) {
      setView(map.timeAt(Math.min(box.x0, x)), map.timeAt(Math.max(box.x0, x)),
        map.byteAt(Math.max(box.y0, y)), map.byteAt(Math.min(box.y0, y)));
    }
    drag = null;
    redraw(false);
  };
  canvas.addEventListener("pointerup", stop);
  canvas.addEventListener("pointercancel", () => { drag = null; map.box = null; });
  canvas.addEventListener("pointerleave", () => {
    showTooltip(null);
    map.hovered = -1;
    redraw(false);
  });
  canvas.addEventListener("dblclick", showAll);
  column.bars.canvas.addEventListener("pointermove", (event) => {
    const box = column.bars.canvas.getBoundingClientRect();
    const hit = column.bars.at(event.clientX - box.left, event.clientY - box.top);
    const lines = !hit ? null : hit.i >= 0 ? blockLines(run, hit.i) : regionLines(run, hit.r);
    showTooltip(lines, event.clientX, event.clientY);
  });
  column.bars.canvas.addEventListener("pointerleave", () => showTooltip(null));
}

// --- keys

function onKey(event) {
  if (event.target.closest("input, select, textarea") || event.altKey || event.metaKey) return;
  const v = page.view, dt = (v.t1 - v.t0) / 8, dy = (v.y1 - v.y0) / 8;
  const plain = {
    "ArrowLeft": () => setInstant(page.instant - 1, true), "ArrowRight": () => setInstant(page.instant + 1, true),
    "+": () => zoomTime(0.7, page.instant), "=": () => zoomTime(0.7, page.instant),
    "-": () => zoomTime(1 / 0.7, page.instant), "0": showAll,
    "p": () => setInstant(page.columns[0].run.peak_event, true), "o": toFailure,
    "Home": () => setInstant(0, true), "End": () => setInstant(page.events - 1, true),
    "?": toggleHelp, "Escape": () => showTooltip(null),
  };
  const withShift = {
    ...plain,
    "ArrowLeft": () => setView(v.t0 - dt, v.t1 - dt, v.y0, v.y1),
    "ArrowRight": () => setView(v.t0 + dt, v.t1 + dt, v.y0, v.y1),
    "ArrowUp": () => setView(v.t0, v.t1, v.y0 + dy, v.y1 + dy),
    "ArrowDown": () => setView(v.t0, v.t1, v.y0 - dy, v.y1 - dy),
  };
  const withCtrl = {
    "ArrowLeft": () => toStep(-1), "ArrowRight": () => toStep(1),
    "ArrowUp": () => zoomAddress(0.8), "ArrowDown": () => zoomAddress(1.25),
  };
  const actions = event.ctrlKey ? withCtrl : event.shiftKey ? withShift : plain;
  const action = actions[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

function toggleHelp() {
  byId("help").hidden = !byId("help").hidden;
  byId("help-button").setAttribute("aria-expanded", String(!byId("help").hidden));
}
