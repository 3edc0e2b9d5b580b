// The address x time map: time goes to the right, addresses go up. Wide views are drawn from a picture made once, in
// which a pixel mixes the colours of the blocks under it by their share of its time and bytes; close views are drawn
// from the blocks.
const kLeft = 78, kRight = 14, kTop = 30, kBottom = 20;
const kOverviewWidth = 8192, kOverviewHeight = 1024, kStrip = 512;

// Pixels of blocks, transparent where there is none.
class Raster {
  constructor(width, height) {
    this.width = width;
    this.height = height;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.sums = new Float32Array(4 * width * height);  // of pixels that several blocks share: r, g, b, weight
    this.shared = false;
  }

  // Paints what lies in events [t0, t1) x bytes [y0, y1). Returns how many rectangles that were.
  paint(run, colours, t0, t1, y0, y1) {
    const { width, height, pixels } = this;
    const { begin, end, low, high, events } = run;
    const xScale = width / (t1 - t0), yScale = height / (y1 - y0);
    let painted = 0;
    pixels.fill(0);
    run.forEachIn(Math.floor(t0), t1, (i) => {
      if (high[i] <= y0 || low[i] >= y1) return;
      painted++;
      let left = (begin[i] - t0) * xScale, right = (Math.min(end[i], events) - t0) * xScale;
      left = left < 0 ? 0 : left;
      right = right > width ? width : right;
      let top = (y1 - high[i]) * yScale, bottom = (y1 - low[i]) * yScale, weight = 1;
      top = top < 0 ? 0 : top;
      bottom = bottom > height ? height : bottom;
      let row = Math.round(top), rowEnd = Math.round(bottom);
      if (row === rowEnd) {
        row = Math.min(height - 1, Math.floor((top + bottom) / 2));
        rowEnd = row + 1;
        weight = bottom - top;
      }
      const colour = colours.rgbOf(i);
      if (right - left >= 2) {
        left = Math.round(left);
        right = Math.round(right);
        if (weight === 1) {
          const value = 0xff000000 | colour[2] << 16 | colour[1] << 8 | colour[0];
          for (let y = row; y < rowEnd; y++) pixels.fill(value, y * width + left, y * width + right);
        } else {
          for (let x = left; x < right; x++) this.share(x, row, rowEnd, weight, colour);
        }
        return;
      }
      const first = Math.floor(left), last = Math.min(width - 1, Math.floor(right));
      if (last === first) {
        this.share(first, row, rowEnd, weight * (right - left), colour);
      } else {
        this.share(first, row, rowEnd, weight * (first + 1 - left), colour);
        if (last - first === 2) this.share(first + 1, row, rowEnd, weight, colour);
        this.share(last, row, rowEnd, weight * (right - last), colour);
      }
    });
    if (this.shared) this.mix();
    return painted;
  }

  share(x, row, rowEnd, weight, colour) {
    const { sums, width } = this, r = colour[0] * weight, g = colour[1] * weight, b = colour[2] * weight;
    this.shared = true;
    for (let at = 4 * (row * width + x), stop = 4 * (rowEnd * width + x); at < stop; at += 4 * width) {
      sums[at] += r;
      sums[at + 1] += g;
      sums[at + 2] += b;
      sums[at + 3] += weight;
    }
  }

  mix() {
    const { sums, pixels } = this;
    for (let p = 0, at = 0; p < pixels.length; p++, at += 4) {
      let weight = sums[at + 3];
      if (weight === 0) continue;
      let r = sums[at], g = sums[at + 1], b = sums[at + 2];
      const under = pixels[p];
      if (under !== 0) {
        r += under & 255;
        g += under >> 8 & 255;
        b += under >> 16 & 255;
        weight += 1;
      }
      const alpha = weight >= 1 ? 255 : Math.max(1, Math.round(255 * weight));
      pixels[p] = alpha << 24 | b / weight << 16 | g / weight << 8 | r / weight;
    }
    sums.fill(0);
    this.shared = false;
  }
}

function newCanvas(width, height) {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  return canvas;
}

// Round steps for an axis of `pixels` length: 1, 2 or 5 times a power of ten, or a power of two for bytes.
function axisStep(span, pixels, spacing, binary) {
  const raw = span * spacing / Math.max(1, pixels);
  if (binary) return 2 ** Math.max(0, Math.ceil(Math.log2(raw)));
  const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1e-9)));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  return Math.max(1, step);
}

class MemoryMap {
  constructor(run, canvas, overlay) {
    this.run = run;
    this.canvas = canvas;
    this.overlay = overlay;
    this.overview = null;
    this.path = "none";
    this.cost = 60e-6;  // ms a rectangle; measured as we go
  }

  resize() {
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    this.width = Math.max(200, this.canvas.clientWidth);
    this.height = Math.max(120, this.canvas.clientHeight);
    for (const c of [this.canvas, this.overlay]) {
      c.width = Math.round(this.width * ratio);
      c.height = Math.round(this.height * ratio);
      c.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.plot = { x: kLeft, y: kTop, w: this.width - kLeft - kRight, h: this.height - kTop - kBottom };
    this.raster = null;
  }

  setColours(colours) {
    this.colours = colours;
    this.overview = null;
  }

  x(t) {
    return this.plot.x + (t - page.view.t0) / (page.view.t1 - page.view.t0) * this.plot.w;
  }
  y(byte) {
    return this.plot.y + (page.view.y1 - byte) / (page.view.y1 - page.view.y0) * this.plot.h;
  }
  timeAt(x) {
    return page.view.t0 + (x - this.plot.x) / this.plot.w * (page.view.t1 - page.view.t0);
  }
  byteAt(y) {
    return page.view.y1 - (y - this.plot.y) / this.plot.h * (page.view.y1 - page.view.y0);
  }
  inPlot(x, y) {
    const p = this.plot;
    return x >= p.x && x < p.x + p.w && y >= p.y && y < p.y + p.h;
  }

  // The whole trace, and halves, quarters and eighths of its width.
  makeOverview() {
    const { run } = this;
    const width = Math.min(kOverviewWidth, Math.max(1, run.events)), height = kOverviewHeight;
    const full = newCanvas(width, height), context = full.getContext("2d");
    const strip = new Raster(kStrip, height);
    for (let x = 0; x < width; x += kStrip) {
      strip.paint(run, this.colours, x / width * run.events, (x + kStrip) / width * run.events, 0, run.lanes);
      context.putImageData(strip.image, x, 0);
    }
    this.overview = [full];
    for (let level = full; level.width > 1024;) {
      const half = newCanvas(Math.ceil(level.width / 2), height);
      half.getContext("2d").drawImage(level, 0, 0, half.width, height);
      this.overview.push(half);
      level = half;
    }
  }

  // Is the picture of the whole fine enough for this view?
  overviewSuffices() {
    const { run, plot } = this, v = page.view;
    if (run.count < 20000) return false;
    const columns = Math.min(kOverviewWidth, run.events) * (v.t1 - v.t0) / run.events;
    const rows = kOverviewHeight * (v.y1 - v.y0) / run.lanes;
    return columns >= plot.w * 0.9 && rows >= plot.h * 0.9;
  }

  drawOverview(context) {
    if (!this.overview) this.makeOverview();
    const { run, plot } = this, v = page.view;
    // Only what the trace covers.
    const t0 = Math.max(0, v.t0), t1 = Math.min(run.events, v.t1);
    const y0 = Math.max(0, v.y0), y1 = Math.min(run.lanes, v.y1);
    if (t1 <= t0 || y1 <= y0) return;
    const level = this.overview.filter((c) => c.width * (t1 - t0) / run.events >= plot.w).pop() || this.overview[0];
    const sx = level.width / run.events, sy = level.height / run.lanes;
    context.imageSmoothingEnabled = true;
    context.drawImage(level, t0 * sx, (run.lanes - y1) * sy, (t1 - t0) * sx, (y1 - y0) * sy,
      this.x(t0), this.y(y1), this.x(t1) - this.x(t0), this.y(y0) - this.y(y1));
  }

  drawBlocks(context, hurried) {
    const { run, plot } = this, v = page.view;
    const perEvent = run.count / Math.max(1, run.events);
    const expected = this.cost * perEvent * Math.max(0, Math.min(v.t1, run.events) - Math.max(v.t0, 0));
    if (this.overviewSuffices() || (hurried && run.count >= 20000 && expected > 10)) {
      this.path = this.overviewSuffices() ? "overview" : "preview";
      this.drawOverview(context);
      return;
    }
    this.path = "blocks";
    const ratio = plot.w * plot.h > 1.2e6 ? 1 : Math.min(2, window.devicePixelRatio || 1);
    const w = Math.round(plot.w * ratio), h = Math.round(plot.h * ratio);
    if (!this.raster || this.raster.width !== w || this.raster.height !== h) {
      this.raster = new Raster(w, h);
      this.rasterCanvas = newCanvas(w, h);
    }
    const start = performance.now();
    const painted = this.raster.paint(run, this.colours, v.t0, v.t1, v.y0, v.y1);
    this.rasterCanvas.getContext("2d").putImageData(this.raster.image, 0, 0);
    if (painted > 2000) this.cost = 0.7 * this.cost + 0.3 * (performance.now() - start) / painted;
    context.drawImage(this.rasterCanvas, plot.x, plot.y, plot.w, plot.h);
    if (painted < 4000) this.drawDetails(context);
  }

  // Outlines, names, and what of a block nobody asked for.
  drawDetails(context) {
    const { run, plot } = this, v = page.view;
    context.lineWidth = 1;
    context.font = "11px " + page.font;
    context.textBaseline = "middle";
    run.forEachIn(Math.floor(v.t0), v.t1, (i) => {
      if (run.high[i] <= v.y0 || run.low[i] >= v.y1) return;
      const left = Math.max(plot.x, this.x(run.begin[i]));
      const right = Math.min(plot.x + plot.w, this.x(Math.min(run.end[i], run.events)));
      const top = Math.max(plot.y, this.y(run.high[i])), bottom = Math.min(plot.y + plot.h, this.y(run.low[i]));
      const w = right - left, h = bottom - top, kind = run.kind[i];
      if (w < 3 || h < 3) return;
      const asked = run.low[i] + run.kind_requested[kind];
      const slackBottom = Math.min(bottom, this.y(asked));
      if (run.kind_pending[kind]) this.hatch(context, left, top, w, h);
      else if (slackBottom - top >= 1) this.hatch(context, left, top, w, slackBottom - top);
      context.strokeStyle = page.theme.edge;
      context.strokeRect(left + 0.5, top + 0.5, Math.max(0, w - 1), Math.max(0, h - 1));
      if (w < 46 || h < 13) return;
      const text = `${run.label(kind)}  ${bytesText(run.kind_requested[kind])}`;
      context.save();
      context.beginPath();
      context.rect(left, top, w, h);
      context.clip();
      context.fillStyle = "#ffffff";
      context.shadowColor = "rgba(0,0,0,.75)";
      context.shadowBlur = 2;
      context.fillText(text, left + 4, (top + bottom) / 2);
      context.restore();
    });
  }

  hatch(context, x, y, w, h) {
    context.save();
    context.beginPath();
    context.rect(x, y, w, h);
    context.clip();
    context.beginPath();
    for (let at = x - h; at < x + w; at += 5) {
      context.moveTo(at, y + h);
      context.lineTo(at + h, y);
    }
    context.strokeStyle = page.theme.hatch;
    context.stroke();
    context.restore();
  }

  drawRegions(context) {
    const { run, plot } = this, v = page.view;
    context.beginPath();
    for (let p = 0; p < run.piece_size.length; p++) {
      if (run.piece_end[p] <= v.t0 || run.piece_begin[p] >= v.t1) continue;
      const low = run.region_lane[run.piece_region[p]] + run.piece_offset[p], high = low + run.piece_size[p];
      if (high <= v.y0 || low >= v.y1) continue;
      const left = Math.max(plot.x, this.x(run.piece_begin[p]));
      const right = Math.min(plot.x + plot.w, this.x(Math.min(run.piece_end[p], run.events)));
      const top = Math.max(plot.y, this.y(high)), bottom = Math.min(plot.y + plot.h, this.y(low));
      context.rect(left, top, Math.max(0.5, right - left), Math.max(0.5, bottom - top));
    }
    context.fillStyle = page.theme.reserved;
    context.fill();
  }

  drawRegionEdges(context) {
    const { run, plot } = this, v = page.view;
    if (run.region_size.length > 3000) return;
    context.beginPath();
    for (let r = 0; r < run.region_size.length; r++) {
      const low = run.region_lane[r], high = low + run.region_size[r];
      if (run.region_end[r] <= v.t0 || run.region_begin[r] >= v.t1 || high <= v.y0 || low >= v.y1) continue;
      if (this.y(low) - this.y(high) < 6) continue;  // lines without room between them hide what they divide
      const left = Math.max(plot.x, this.x(run.region_begin[r]));
      const right = Math.min(plot.x + plot.w, this.x(Math.min(run.region_end[r], run.events)));
      // How far a range reaches changes with what is mapped.
      for (const byte of run.region_is_range[r] ? [low] : [low, high]) {
        const y = Math.round(this.y(byte)) + 0.5;
        if (y < plot.y || y > plot.y + plot.h) continue;
        context.moveTo(left, y);
        context.lineTo(right, y);
      }
    }
    context.strokeStyle = page.theme.region;
    context.lineWidth = 1;
    context.stroke();
  }

  // The ribbon of phases and steps, and both axes.
  drawFrame(context) {
    const { run, plot } = this, v = page.view;
    context.font = "11px " + page.font;
    context.textBaseline = "middle";
    let covered = -1, lastText = -100, step = -1;
    for (let s = Math.max(0, run.scopeAt(v.t0)); s < run.scope_begin.length && run.scope_begin[s] < v.t1; s++) {
      const end = s + 1 < run.scope_begin.length ? run.scope_begin[s + 1] : run.events;
      const left = Math.max(plot.x, this.x(run.scope_begin[s])), right = Math.min(plot.x + plot.w, this.x(end));
      // Parts that fall into a pixel already drawn are left out.
      if (Math.ceil(right) > covered && right > left) {
        context.fillStyle = phaseColours[run.scope_phase[s]];
        context.fillRect(Math.max(left, covered), 16, Math.max(0.6, right - Math.max(left, covered)), 8);
        covered = Math.max(covered, Math.floor(right * 2) / 2);
      }
      if (run.scope_step[s] !== step) {
        step = run.scope_step[s];
        if (left - lastText > 64) {
          context.fillStyle = page.theme.muted;
          context.textAlign = "left";
          context.fillText(`step ${countText(step)}`, left + 2, 8);
          context.fillRect(left, 3, 1, 13);
          lastText = left;
        }
      }
    }
    context.fillStyle = page.theme.muted;
    context.textAlign = "right";
    const yStep = axisStep(v.y1 - v.y0, plot.h, 42, true);
    for (let b = Math.ceil(Math.max(0, v.y0) / yStep) * yStep; b <= v.y1; b += yStep) {
      const y = this.y(b);
      context.fillText(bytesText(b), plot.x - 8, y);
      context.fillRect(plot.x - 4, Math.round(y), 4, 1);
    }
    context.textAlign = "center";
    const tStep = axisStep(v.t1 - v.t0, plot.w, 90, false);
    for (let t = Math.ceil(Math.max(0, v.t0) / tStep) * tStep; t <= v.t1; t += tStep) {
      const x = this.x(t), half = context.measureText(countText(t)).width / 2;
      context.fillText(countText(t), Math.min(x, this.width - half - 1), plot.y + plot.h + 11);
      context.fillRect(Math.round(x), plot.y + plot.h, 1, 4);
    }
    context.textAlign = "left";
    context.fillText("event", 6, plot.y + plot.h + 11);
    context.strokeStyle = page.theme.region;
    context.strokeRect(plot.x - 0.5, plot.y - 0.5, plot.w + 1, plot.h + 1);
  }

  draw(hurried) {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    if (this.run.events === 0) return;
    this.drawRegions(context);
    this.drawBlocks(context, hurried);
    this.drawRegionEdges(context);
    this.drawFrame(context);
  }

  // What moves with the pointer: the instant, the block under the pointer, marks.
  drawOverlay() {
    const context = this.overlay.getContext("2d"), { plot, run } = this;
    context.clearRect(0, 0, this.width, this.height);
    if (run.events === 0) return;
    const line = (t, colour, dash, text) => {
      const x = this.x(t + 0.5);
      if (x < plot.x || x > plot.x + plot.w) return;
      context.strokeStyle = context.fillStyle = colour;
      context.setLineDash(dash);
      context.lineWidth = 1.5;
      context.beginPath();
      context.moveTo(x, plot.y);
      context.lineTo(x, plot.y + plot.h);
      context.stroke();
      context.setLineDash([]);
      if (!text) return;
      const right = x > plot.x + plot.w - 80;
      context.font = "bold 11px " + page.font;
      context.textAlign = right ? "right" : "left";
      context.fillText(text, x + (right ? -4 : 4), plot.y + 9);
    };
    line(run.peak_event, page.theme.peak, [5, 4], "peak");
    let lastX = -1;
    for (const t of run.failed_event) {
      const x = this.x(t + 0.5);
      if (x < plot.x || x > plot.x + plot.w || x - lastX < 1) continue;
      lastX = x;
      context.fillStyle = page.theme.failure;
      context.beginPath();
      context.moveTo(x - 5, plot.y + plot.h + 8);
      context.lineTo(x + 5, plot.y + plot.h + 8);
      context.lineTo(x, plot.y + plot.h - 2);
      context.fill();
    }
    line(Math.min(page.instant, run.events - 1), page.theme.instant, []);
    if (this.hovered >= 0) {
      const i = this.hovered;
      const born = Math.max(plot.x, this.x(run.born[i]));
      const died = Math.min(plot.x + plot.w, this.x(Math.min(run.died[i], run.events)));
      const top = Math.max(plot.y, this.y(run.high[i])), bottom = Math.min(plot.y + plot.h, this.y(run.low[i]));
      context.strokeStyle = page.theme.text;
      context.lineWidth = 2;
      context.strokeRect(born, top, Math.max(1, died - born), Math.max(1, bottom - top));
    }
    if (this.box) {
      const { x0, y0, x1, y1 } = this.box;
      context.fillStyle = "rgba(78,121,167,.25)";
      context.fillRect(Math.min(x0, x1), Math.min(y0, y1), Math.abs(x1 - x0), Math.abs(y1 - y0));
    }
  }
}
