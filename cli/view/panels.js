// What stands under a map: the curves (Chart.js), the segments and the holders at the chosen instant.
function element(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
  e.append(...children);
  return e;
}

const figureList = (rows) => rows.map(([name, value]) =>
  element("div", {}, element("dt", {}, name), element("dd", {}, value)));

// Draws the instant and the peak over a chart whose x is the event.
const marks = (run, peakText) => ({
  id: "marks",
  afterDatasetsDraw(chart) {
    const { ctx, chartArea: area, scales } = chart;
    const line = (t, colour, dash, text) => {
      const x = scales.x.getPixelForValue(t);
      if (x < area.left || x > area.right) return;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.lineWidth = 1.5;
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, area.top);
      ctx.lineTo(x, area.bottom);
      ctx.stroke();
      if (text) {
        const right = x > area.right - 130;
        ctx.font = "bold 11px " + page.font;
        ctx.textAlign = right ? "right" : "left";
        ctx.fillText(text, x + (right ? -4 : 4), area.top + 10);
      }
      ctx.restore();
    };
    line(run.peak_event, page.theme.peak, [5, 4], peakText);
    line(page.instant, page.theme.instant, []);
  },
});

class Curves {
  constructor(run, roleCanvas, gapCanvas) {
    this.run = run;
    this.columns = 400;
    const stack = page.roles.map((role, i) => ({
      label: role, role: i, data: [], backgroundColor: rolePalette[i], borderColor: rolePalette[i], fill: "-1",
    }));
    const used = new Set();
    for (let k = 0; k < run.kind_role.length; k++) used.add(run.kind_role[k]);
    const present = stack.filter((d) => used.has(d.role));
    if (present.length > 0) present[0].fill = "origin";
    this.roles = this.makeChart(roleCanvas, present, true);
    const part = (label, key, colour, more) =>
      ({ label, key, data: [], borderColor: colour, backgroundColor: colour + "55", ...more });
    // Allocated, pending and free add up to reserved.
    this.gaps = this.makeChart(gapCanvas, [
      part("allocated", "size", "#4e79a7", { fill: "origin", stack: "reserved" }),
      ...(run.kind_pending.some((p) => p)
        ? [part("pending", "pending", "#d9b82f", { fill: "-1", stack: "reserved" })] : []),
      part("free in segments", "free", "#e15759", { fill: "-1", stack: "reserved" }),
      part("largest free run", "largest", "#59a14f", { fill: false, stack: "largest", borderDash: [4, 3] }),
    ], false);
  }

  makeChart(canvas, datasets, roles) {
    const chart = new Chart(canvas, {
      type: "line",
      data: { datasets },
      options: {
        animation: false, parsing: false, normalized: true, maintainAspectRatio: false, stepped: true,
        layout: { padding: { right: kRight } },
        datasets: { line: { pointRadius: 0, pointHitRadius: 0, borderWidth: roles ? 0 : 1.5, stepped: "before" } },
        interaction: { mode: "index", intersect: false, axis: "x" },
        scales: {
          x: { type: "linear", min: 0, max: 1, ticks: { display: false }, grid: { display: false } },
          y: {
            stacked: true, beginAtZero: true, afterFit: (scale) => { scale.width = kLeft; },
            ticks: { callback: (v) => bytesText(v) },
          },
        },
        plugins: {
          legend: { position: "bottom", labels: { boxWidth: 10, boxHeight: 10 } },
          tooltip: {
            callbacks: {
              title: (items) => (items.length ? `event ${countText(items[0].parsed.x)}` : ""),
              label: (item) => `${item.dataset.label}: ${bytesText(item.parsed.y)}`,
              footer: (items) => this.footer(items, roles),
            },
          },
        },
        onClick: (event) => {
          const x = chart.scales.x.getValueForPixel(event.x);
          if (x !== undefined) setInstant(Math.floor(x));
        },
      },
      plugins: [marks(this.run, roles ? `peak ${bytesText(this.run.peak.live)}` : "")],
    });
    return chart;
  }

  footer(items, roles) {
    if (!items.length) return "";
    if (roles) return `live ${bytesText(items.reduce((sum, item) => sum + item.parsed.y, 0))}`;
    const part = this.points[items[0].dataIndex];
    if (!part) return "";
    const share = percentText(part.free > 0 ? 1 - part.largest / part.free : 0);
    return `reserved ${bytesText(part.reserved)}\n${share} of the free bytes are not in the largest run`;
  }

  // Each point is a real state: the instant with the most live bytes in its part of the time.
  update() {
    const { t0, t1 } = page.view;
    this.points = this.run.curve(t0, t1, this.columns);
    for (const chart of [this.roles, this.gaps]) {
      Object.assign(chart.options.scales.x, { min: t0, max: t1 });
      chart.options.scales.y.ticks.color = chart.options.plugins.legend.labels.color = page.theme.text;
      chart.options.scales.y.grid = { color: page.theme.grid };
      const highest = chart === this.roles ? page.highestLive : page.highestReserved;
      const step = axisStep(Math.max(1, highest), 4, 1, true);
      chart.options.scales.y.max = Math.max(1, Math.ceil(highest / step)) * step;
      chart.options.scales.y.ticks.stepSize = step;
    }
    const last = this.points.length ? { x: Math.min(t1, this.run.events) } : null;
    for (const d of this.roles.data.datasets) {
      d.data = this.points.map((p) => ({ x: p.t, y: p.roles[d.role] }));
      if (last) d.data.push({ x: last.x, y: d.data[d.data.length - 1].y });
    }
    for (const d of this.gaps.data.datasets) {
      d.data = this.points.map((p) => ({ x: p.t, y: p[d.key] }));
      if (last) d.data.push({ x: last.x, y: d.data[d.data.length - 1].y });
    }
    this.roles.update("none");
    this.gaps.update("none");
  }

  drawMarks() {
    this.roles.draw();
    this.gaps.draw();
  }
}

function percentText(fraction) {
  return (100 * fraction).toFixed(1) + " %";
}

// The regions that exist at the instant, each a bar as long as it is large, with its blocks: PyTorch's viewer calls it
// the allocator state.
class SegmentBars {
  constructor(run, canvas, caption) {
    this.run = run;
    this.canvas = canvas;
    this.caption = caption;
    this.boxes = [];
  }

  draw(colours) {
    const { run, canvas } = this, t = Math.min(page.instant, run.events - 1);
    const regions = [];
    let largest = 1;
    for (let r = 0; r < run.region_size.length; r++) {
      if (run.region_begin[r] <= t && t < run.region_end[r] && run.region_size[r] > 0) {
        regions.push(r);
        largest = Math.max(largest, run.region_size[r]);
      }
    }
    const width = Math.max(200, canvas.clientWidth), row = 20, gap = 5;
    // Small ones share a row.
    let x = 0, y = 2, shown = 0;
    const place = new Map();
    for (const r of regions) {
      const w = Math.max(24, run.region_size[r] / largest * width);
      if (x > 0 && x + w > width + 0.5) {
        x = 0;
        y += row + gap;
      }
      if (y > 60 * (row + gap)) break;
      place.set(r, { x, y, w: Math.min(w, width), scale: Math.min(w, width) / run.region_size[r] });
      x += w + gap;
      shown++;
    }
    const height = y + row + 2, ratio = Math.min(2, window.devicePixelRatio || 1);
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.boxes = [];
    for (let p = 0; p < run.piece_size.length; p++) {
      const box = place.get(run.piece_region[p]);
      if (!box || run.piece_begin[p] > t || run.piece_end[p] <= t) continue;
      context.fillStyle = page.theme.reserved;
      context.fillRect(box.x + run.piece_offset[p] * box.scale, box.y, run.piece_size[p] * box.scale, row);
    }
    for (const i of t >= 0 ? run.liveAt(t) : []) {
      const box = place.get(run.region[i]);
      if (!box) continue;
      const kind = run.kind[i], left = box.x + run.offset[i] * box.scale, w = run.kind_size[kind] * box.scale;
      context.fillStyle = colours.hexOf(i);
      context.fillRect(left, box.y, Math.max(0.5, w), row);
      const asked = run.kind_requested[kind] * box.scale;
      context.fillStyle = page.theme.hatch;
      if (run.kind_pending[kind]) context.fillRect(left, box.y + row / 3, w, row / 3);
      else if (w - asked >= 0.5) context.fillRect(left + asked, box.y, w - asked, row);
      if (w > 2) {
        context.fillStyle = page.theme.edge;
        context.fillRect(left + w - 0.5, box.y, 0.5, row);
      }
      this.boxes.push({ x: left, y: box.y, w: Math.max(1, w), h: row, i });
    }
    context.strokeStyle = page.theme.region;
    for (const [r, box] of place) {
      context.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, row - 1);
      this.boxes.push({ x: box.x, y: box.y, w: box.w, h: row, i: -1, r });
    }
    this.caption.textContent = `${countText(regions.length)} ${regions.length === 1 ? "segment" : "segments"}` +
      (shown < regions.length ? `, the first ${shown} shown` : "");
  }

  at(x, y) {
    return this.boxes.find((b) => x >= b.x && x < b.x + b.w && y >= b.y && y < b.y + b.h);
  }
}

// The ledger and the holders at the instant.
class Holders {
  constructor(run, ledger, table) {
    this.run = run;
    this.ledger = ledger;
    this.table = table;
    this.group = "tensor";
  }

  keyOf(i) {
    const run = this.run, k = run.kind[i], none = "(no name)";
    if (this.group === "role") return page.roles[run.kind_role[k]];
    if (this.group === "layer") return run.names[run.kind_module[k]] || "(no layer)";
    if (this.group === "op") return run.names[run.kind_op[k]] || "(no op)";
    return run.label(k) || none;
  }

  draw() {
    const { run } = this, t = Math.min(page.instant, run.events - 1);
    const sums = t >= 0 ? run.sumsAt(t) : run.newSums();
    const reserved = run.reservedAt(t), free = reserved - sums.size - sums.pending;
    const largest = t >= 0 ? run.largest_free[t] : 0;
    this.state = { t, live: sums.live, reserved, free, largest, allocated: sums.size, pending: sums.pending,
      roles: [...sums.roles] };
    const rows = [["reserved", bytesText(reserved)], ["live", bytesText(sums.live)],
      ["rounding, slack", bytesText(sums.size - sums.live)]];
    if (sums.pending > 0) rows.push(["pending", bytesText(sums.pending)]);
    rows.push(["free in segments", bytesText(free)], ["largest free run", bytesText(largest)],
      ["fragmentation", percentText(free > 0 ? 1 - largest / free : 0)], ["blocks", countText(sums.blocks)]);
    this.ledger.replaceChildren(...figureList(rows));

    const groups = new Map();
    for (const i of t >= 0 ? run.liveAt(t) : []) {
      const k = run.kind[i];
      if (run.kind_pending[k]) continue;
      const role = run.kind_role[k], key = this.keyOf(i) + "\0" + role;
      const group = groups.get(key) || { name: this.keyOf(i), role, bytes: 0, count: 0, born: kStays };
      group.bytes += run.kind_requested[k];
      group.count++;
      group.born = Math.min(group.born, run.born[i]);
      groups.set(key, group);
    }
    const sorted = [...groups.values()].sort((a, b) => b.bytes - a.bytes);
    const limit = 15, shown = sorted.slice(0, limit), rest = sorted.slice(limit);
    const body = shown.map((g) => {
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = rolePalette[g.role];
      return element("tr", {},
        element("td", {}, swatch, g.name), element("td", {}, page.roles[g.role]),
        element("td", { class: "number" }, bytesText(g.bytes)),
        element("td", { class: "number" }, percentText(sums.live > 0 ? g.bytes / sums.live : 0)),
        element("td", { class: "number" }, countText(g.count)),
        element("td", { class: "number" }, countText(t - g.born)));
    });
    if (rest.length > 0) {
      const bytes = rest.reduce((sum, g) => sum + g.bytes, 0), count = rest.reduce((sum, g) => sum + g.count, 0);
      body.push(element("tr", {}, element("td", {}, `${countText(rest.length)} others`), element("td"),
        element("td", { class: "number" }, bytesText(bytes)),
        element("td", { class: "number" }, percentText(sums.live > 0 ? bytes / sums.live : 0)),
        element("td", { class: "number" }, countText(count)), element("td")));
    }
    this.rows = shown;
    this.table.tBodies[0].replaceChildren(...body);
  }
}
