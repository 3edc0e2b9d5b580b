// The colours of blocks: by role, layer, size class or age.
const rolePalette = [
  "#4e79a7", "#f28e2b", "#b07aa1", "#59a14f", "#2fb7b0", "#e15759", "#d9b82f", "#9c755f", "#9aa5b1", "#6b7280",
];
const ramp = ["#4c2a85", "#3f51a3", "#2f7f9e", "#2aa283", "#6cbf4b", "#c3cf31", "#f5c13c", "#f28b30", "#d94c3d"];
const phaseColours = ["#888888", "#4e79a7", "#e15759", "#b07aa1", "#59a14f", "#d9b82f"];

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

const sizeClasses = [4 << 10, 64 << 10, 512 << 10, 1 << 20, 4 << 20, 10 << 20, 32 << 20, 128 << 20, Infinity];
const ageClasses = [10, 32, 100, 316, 1000, 3162, 10000, 100000, Infinity];

// How blocks are coloured: a class for each rectangle, a colour and a text for each class.
class Colours {
  constructor(run, mode, find, theme) {
    this.run = run;
    this.byAge = mode === "age";
    const kinds = run.kind_size.length;
    this.ofKind = new Uint32Array(kinds);
    this.legend = [];
    if (mode === "role") {
      this.hex = rolePalette;
      this.legend = page.roles.map((text, i) => ({ text, colour: rolePalette[i], index: i }));
      for (let k = 0; k < kinds; k++) this.ofKind[k] = run.kind_role[k];
    } else if (mode === "size") {
      this.hex = ramp;
      this.legend = this.rampLegend(sizeClasses, bytesText);
      for (let k = 0; k < kinds; k++) this.ofKind[k] = sizeClasses.findIndex((limit) => run.kind_size[k] <= limit);
    } else if (mode === "age") {
      this.hex = ramp;
      this.legend = this.rampLegend(ageClasses, (n) => countText(n) + " events");
    } else {
      this.makeLayers(kinds);
    }
    const used = new Set();
    if (this.byAge) {
      for (let i = 0; i < run.count; i++) used.add(this.classOf(i));
    } else {
      this.ofKind.forEach((c) => used.add(c));
    }
    this.legend = this.legend.filter((entry) => used.has(entry.index));
    this.rgb = this.hex.map(rgb);
    this.dim = null;
    if (find) {
      const text = find.toLowerCase();
      const matches = run.names.map((name) => name.toLowerCase().includes(text));
      this.dim = new Uint8Array(kinds);
      for (let k = 0; k < kinds; k++) {
        this.dim[k] = matches[run.kind_name[k]] || matches[run.kind_module[k]] || matches[run.kind_op[k]] ? 0 : 1;
      }
    }
    this.dimRgb = rgb(theme.dim);
    this.dimHex = theme.dim;
  }

  rampLegend(limits, text) {
    return limits.map((limit, index) => ({
      text: limit === Infinity ? `over ${text(limits[index - 1])}` : `up to ${text(limit)}`,
      colour: ramp[index],
      index,
    }));
  }

  makeLayers(kinds) {
    const run = this.run, places = new Map(), bytes = [];
    for (let k = 0; k < kinds; k++) {
      const module = run.kind_module[k];
      if (!places.has(module)) {
        places.set(module, places.size);
        bytes.push(0);
      }
      this.ofKind[k] = places.get(module);
      bytes[this.ofKind[k]] += run.kind_requested[k];
    }
    this.hex = [...places.values()].map((i) => layerColour(i));
    this.legend = [...places.entries()].map(([module, index]) => ({
      text: run.names[module] || "no layer", colour: this.hex[index], index,
    })).sort((a, b) => bytes[b.index] - bytes[a.index]);
  }

  classOf(i) {
    if (!this.byAge) return this.ofKind[this.run.kind[i]];
    const run = this.run, age = Math.min(run.died[i], run.events) - run.born[i];
    for (let c = 0; ; c++) {
      if (age <= ageClasses[c]) return c;
    }
  }
  rgbOf(i) {
    return this.dim && this.dim[this.run.kind[i]] ? this.dimRgb : this.rgb[this.classOf(i)];
  }
  hexOf(i) {
    return this.dim && this.dim[this.run.kind[i]] ? this.dimHex : this.hex[this.classOf(i)];
  }
}

// Hues a golden angle apart, in three lightnesses.
function layerColour(i) {
  const hue = (i * 137.508 + 210) % 360, s = 0.55, l = [0.5, 0.62, 0.4][i % 3];
  const a = s * Math.min(l, 1 - l);
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (l - a * Math.max(-1, Math.min(k - 3, 9 - k, 1)))).toString(16).padStart(2, "0");
  };
  return `#${channel(0)}${channel(8)}${channel(4)}`;
}
