// The data of the page: typed arrays and the questions asked of them. No drawing here.
const kStays = 0xffffffff;

const units = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytesText(n) {
  let unit = 0;
  while (Math.abs(n) >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit++;
  }
  return (unit === 0 ? String(n) : n.toFixed(n >= 100 ? 1 : 2)) + " " + units[unit];
}
const countText = (n) => n.toLocaleString("en-US");

// Base64 of a zlib stream -> ArrayBuffer.
async function inflate(base64, length) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(stream).arrayBuffer();
  if (buffer.byteLength !== length) throw new Error(`the data has ${buffer.byteLength} bytes, expected ${length}`);
  return buffer;
}

// The first index i in [0, n) with get(i) > value, else n; get must not fall.
function upperBound(n, get, value) {
  let low = 0, high = n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (get(middle) > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

// One trace under one policy. A rectangle i covers the events [begin[i], end[i]) and the bytes [low[i], high[i]) of the
// picture; rectangles are ordered by begin, and those of one instant do not overlap.
class Run {
  constructor(meta, buffer) {
    Object.assign(this, meta);
    for (const [name, a] of Object.entries(meta.arrays)) this[name] = this.typedArray(buffer, a);
    this.makeRectangles();
    this.makeIndex();
    this.makeReserved();
    this.makeBuckets();
  }

  typedArray(buffer, { type, at, count }) {
    if (type === "f64") return new Float64Array(buffer, at, count);
    if (type === "u8") return new Uint8Array(buffer, at, count);
    const values = new Uint32Array(buffer, at, count);
    if (type === "delta") {
      for (let i = 1; i < count; i++) values[i] += values[i - 1];
    }
    return values;
  }

  makeRectangles() {
    const n = this.begin.length;
    this.count = n;
    this.end = this.life;
    this.born = this.before;
    this.died = this.after;
    this.low = new Float64Array(n);
    this.high = new Float64Array(n);
    for (let i = 0; i < n; i++) {
      this.end[i] += this.begin[i];
      this.born[i] = this.begin[i] - this.born[i];
      this.died[i] += this.end[i];
      this.low[i] = this.region_lane[this.region[i]] + this.offset[i];
      this.high[i] = this.low[i] + this.kind_size[this.kind[i]];
    }
  }

  // Rectangles by end, and at every `stride` events a list of those that are there: so that what is there at any
  // instant is found without reading the whole trace.
  makeIndex() {
    const { begin, end, events, count } = this;
    const starts = new Uint32Array(events + 1);
    let ended = 0, lives = 0;
    for (let i = 0; i < count; i++) {
      lives += Math.min(end[i], events) - begin[i];
      if (end[i] < events) {
        starts[end[i] + 1]++;
        ended++;
      }
    }
    for (let t = 0; t < events; t++) starts[t + 1] += starts[t];
    this.byEnd = new Uint32Array(ended);
    for (let i = 0; i < count; i++) {
      if (end[i] < events) this.byEnd[starts[end[i]]++] = i;
    }
    this.stride = Math.max(256, Math.ceil(lives / 4e6));
    const lists = [], offsets = [0];
    let live = [], next = 0, total = 0;
    for (let t = 0; t < events; t += this.stride) {
      live = live.filter((i) => end[i] > t);
      for (; next < count && begin[next] <= t; next++) {
        if (end[next] > t) live.push(next);
      }
      lists.push(Uint32Array.from(live));
      total += live.length;
      offsets.push(total);
    }
    this.checkpoints = new Uint32Array(total);
    lists.forEach((list, k) => this.checkpoints.set(list, offsets[k]));
    this.checkpointAt = Uint32Array.from(offsets);
  }

  firstBeginningAfter(t) {
    return upperBound(this.count, (i) => this.begin[i], t);
  }

  // Calls visit(i) for every rectangle that covers some instant of [from, to), in no particular order but that those
  // that begin later come later.
  forEachIn(from, to, visit) {
    if (this.events === 0) return;
    from = Math.max(0, Math.min(from, this.events - 1));
    const k = Math.floor(from / this.stride), { begin, end, count } = this;
    for (let j = this.checkpointAt[k]; j < this.checkpointAt[k + 1]; j++) {
      const i = this.checkpoints[j];
      if (end[i] > from) visit(i);
    }
    for (let i = this.firstBeginningAfter(k * this.stride); i < count && begin[i] < to; i++) {
      if (end[i] > from) visit(i);
    }
  }

  liveAt(t) {
    const live = [];
    this.forEachIn(t, t + 1, (i) => live.push(i));
    return live;
  }

  // The rectangle at an instant and a byte of the picture, or -1.
  at(t, y) {
    let found = -1;
    if (t >= 0 && t < this.events) {
      this.forEachIn(t, t + 1, (i) => {
        if (this.low[i] <= y && y < this.high[i]) found = i;
      });
    }
    return found;
  }

  regionAt(t, y) {
    for (let r = 0; r < this.region_lane.length; r++) {
      if (this.region_begin[r] <= t && t < this.region_end[r] && this.region_lane[r] <= y &&
          y < this.region_lane[r] + this.region_size[r]) return r;
    }
    return -1;
  }

  // Reserved bytes as steps: reservedBytes[k] from event reservedFrom[k] on.
  makeReserved() {
    const changes = new Map();
    const add = (t, n) => changes.set(t, (changes.get(t) || 0) + n);
    for (let p = 0; p < this.piece_size.length; p++) {
      add(this.piece_begin[p], this.piece_size[p]);
      if (this.piece_end[p] < this.events) add(this.piece_end[p], -this.piece_size[p]);
    }
    const times = [...changes.keys()].sort((a, b) => a - b);
    let reserved = 0;
    this.reservedFrom = times;
    this.reservedBytes = times.map((t) => (reserved += changes.get(t)));
  }

  reservedAt(t) {
    const k = upperBound(this.reservedFrom.length, (i) => this.reservedFrom[i], t);
    return k === 0 ? 0 : this.reservedBytes[k - 1];
  }

  scopeAt(t) {
    return upperBound(this.scope_begin.length, (i) => this.scope_begin[i], t) - 1;
  }

  scopeText(t) {
    const s = this.scopeAt(t);
    if (s < 0) return "";
    const micro = this.scope_micro_batch[s];
    return `step ${countText(this.scope_step[s])}${micro ? `, micro-batch ${micro}` : ""}, ` +
      page.phases[this.scope_phase[s]];
  }

  // What the block is called: its tensor, else its layer, else its operation, else its role.
  label(kind) {
    return this.names[this.kind_name[kind]] || this.names[this.kind_module[kind]] ||
      this.names[this.kind_op[kind]] || page.roles[this.kind_role[kind]];
  }

  newSums() {
    return { roles: new Float64Array(page.roles.length), live: 0, size: 0, pending: 0, blocks: 0 };
  }

  addTo(sums, i, sign) {
    const k = this.kind[i], size = this.kind_size[k];
    if (this.kind_pending[k]) {
      sums.pending += sign * size;
      return;
    }
    sums.roles[this.kind_role[k]] += sign * this.kind_requested[k];
    sums.live += sign * this.kind_requested[k];
    sums.size += sign * size;
    sums.blocks += sign;
  }

  sumsAt(t) {
    const sums = this.newSums();
    this.forEachIn(t, t + 1, (i) => this.addTo(sums, i, 1));
    return sums;
  }

  // Walks over the events [from, to) and calls visit(t, sums) after each.
  walk(from, to, visit) {
    const { begin, end, byEnd } = this;
    const sums = from > 0 ? this.sumsAt(from - 1) : this.newSums();
    let started = from > 0 ? this.firstBeginningAfter(from - 1) : 0;
    let ended = upperBound(byEnd.length, (i) => end[byEnd[i]], from - 1);
    for (let t = from; t < to; t++) {
      for (; ended < byEnd.length && end[byEnd[ended]] === t; ended++) this.addTo(sums, byEnd[ended], -1);
      for (; started < this.count && begin[started] === t; started++) this.addTo(sums, started, 1);
      visit(t, sums);
    }
  }

  // The instant with the most live bytes in each of up to `columns` equal parts of [from, to), with its sums.
  highest(from, to, columns, step) {
    const parts = [];
    let part = null, limit = 0;
    const width = Math.max(1, (to - from) / columns);
    step(from, to, (t, live, take) => {
      if (!part || t >= limit) {
        part = { t: -1, live: -1 };
        parts.push(part);
        limit = from + width * (Math.floor((t - from) / width) + 1);
      }
      if (live > part.live) take(part, t);
    });
    return parts;
  }

  take(part, t, sums) {
    part.t = t;
    part.live = sums.live;
    part.roles = Float64Array.from(sums.roles);
    part.size = sums.size;
    part.pending = sums.pending;
  }

  // Coarse parts for the whole trace, made once.
  makeBuckets() {
    this.buckets = this.highest(0, this.events, 4096, (from, to, visit) => {
      this.walk(from, to, (t, sums) => visit(t, sums.live, (part) => this.take(part, t, sums)));
    });
    const none = { t: 0, live: 0 };
    this.peak_live_found = this.buckets.reduce((best, part) => (part.live > best.live ? part : best), none);
  }

  // Points of the curves over [from, to): coarse parts when they are fine enough, else the events themselves.
  curve(from, to, columns) {
    from = Math.max(0, Math.floor(from));
    to = Math.min(this.events, Math.ceil(to));
    if (to <= from) return [];
    const coarse = this.buckets.length * (to - from) / this.events;
    const parts = coarse >= columns * 0.75 && coarse < this.events
      ? this.highest(from, to, columns, (a, b, visit) => {
        for (const bucket of this.buckets) {
          if (bucket.t >= a && bucket.t < b) {
            visit(bucket.t, bucket.live, (part) => Object.assign(part, bucket));
          }
        }
      })
      : this.highest(from, to, columns, (a, b, visit) => {
        this.walk(a, b, (t, sums) => visit(t, sums.live, (part) => this.take(part, t, sums)));
      });
    for (const part of parts) {
      part.reserved = this.reservedAt(part.t);
      part.free = part.reserved - part.size - part.pending;
      part.largest = this.largest_free[part.t];
    }
    return parts;
  }

  // What happened at an event, in words.
  eventText(t) {
    for (let f = 0; f < this.failed_event.length; f++) {
      if (this.failed_event[f] === t) {
        const name = this.names[this.failed_name[f]] || this.names[this.failed_module[f]] ||
          this.names[this.failed_op[f]] || page.roles[this.failed_role[f]];
        return `request of ${bytesText(this.failed_bytes[f])} for ${name} failed`;
      }
    }
    const describe = (i) => `${this.label(this.kind[i])}, ${bytesText(this.kind_requested[this.kind[i]])}`;
    const first = this.firstBeginningAfter(t - 1);
    for (let i = first; i < this.count && this.begin[i] === t; i++) {
      if (this.born[i] === t) return `alloc ${describe(i)}`;
    }
    for (let i = upperBound(this.byEnd.length, (k) => this.end[this.byEnd[k]], t - 1); i < this.byEnd.length; i++) {
      const r = this.byEnd[i];
      if (this.end[r] !== t) break;
      if (this.died[r] === t && !this.kind_pending[this.kind[r]]) return `free ${describe(r)}`;
    }
    if (first < this.count && this.begin[first] === t) {
      return `${describe(first)} becomes ${page.roles[this.kind_role[this.kind[first]]]}`;
    }
    return "no block changes";
  }
}
