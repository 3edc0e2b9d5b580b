// The effective-batch picture: the micro-batches of a chosen step as bars, as wide as they have samples, coloured by how
// far the weight of a sample is from 1/N.
const kRight = 1e-6;  // as `limpid check ledger`: rounding of float32

const deviation = ([, low, high]) =>
  low === null || high === null ? Infinity : Math.max(Math.abs(low - 1), Math.abs(high - 1));

// Blue is 1/N; from a deviation of a millionth (ochre) to one of 1 and more (red), on a logarithmic scale.
function deviationColour(d) {
  if (d <= kRight) return "#2f6db3";
  const t = Math.min(1, Math.max(0, 1 + Math.log10(Math.max(d, kRight)) / 6));
  return `hsl(${Math.round(42 - 42 * t)} 85% ${Math.round(28 + 4 * t)}%)`;
}

function weightText(part) {
  if (deviation(part) <= kRight) return "weight 1/N";
  const [low, high] = [part[1], part[2]].map(numberText);
  return low === high ? `weight ${low} × 1/N` : `weight ${low} to ${high} × 1/N`;
}

class BatchPicture {
  constructor(batches) {
    this.list = batches.list;
    this.marked = this.list.flatMap((b, i) => (b.marks ? [i] : []));
    this.at = 0;
    byId("batches-note").textContent = this.note(batches);
    this.slider = byId("step");
    this.slider.max = Math.max(0, this.list.length - 1);
    this.slider.addEventListener("input", () => this.show(Number(this.slider.value)));
    byId("step-before").addEventListener("click", () => this.show(this.at - 1));
    byId("step-after").addEventListener("click", () => this.show(this.at + 1));
    byId("step-marked").addEventListener("click", () => this.showMarked());
    byId("step-marked").disabled = this.marked.length === 0;
    document.addEventListener("keydown", (event) => this.key(event));
    for (const i of this.marked) {
      const mark = element("i");
      mark.style.left = `calc(${(100 * i) / Math.max(1, this.list.length - 1)}% - 1px)`;
      byId("strip").append(mark);
    }
    this.show(this.marked[0] ?? 0);
  }

  note(batches) {
    let text = `One optimizer step is one effective batch of N samples; each should weigh 1/N. The bars are its micro-batches, ` +
      `as computed: blue where every weight is 1/N, ochre to red the farther it is from that. Left and right arrows choose a ` +
      `step, M the next marked one (retried, skipped or with a violation): ${oneOf(this.marked.length, "marked step")}.`;
    if (batches.every > 1) {
      text += ` Of ${countText(batches.total)} steps the picture has ${countText(this.list.length)}: every ${batches.every}th ` +
        `one and the marked ones`;
      text += batches.marked_left_out > 0 ? `, of which ${countText(batches.marked_left_out)} are left out.` : ".";
    }
    return text;
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, .scroll, .ids")) return;
    if (event.key === "ArrowLeft") this.show(this.at - 1);
    else if (event.key === "ArrowRight") this.show(this.at + 1);
    else if (event.key === "m" || event.key === "M") this.showMarked();
    else return;
    event.preventDefault();
  }

  showMarked() {
    if (this.marked.length > 0) this.show(this.marked.find((i) => i > this.at) ?? this.marked[0]);
  }

  show(index) {
    if (this.list.length === 0) return;
    this.at = Math.min(Math.max(index, 0), this.list.length - 1);
    const b = this.list[this.at];
    this.slider.value = this.at;
    this.slider.setAttribute("aria-valuetext", `step ${b.step}`);
    byId("step-name").textContent = `step ${countText(b.step)}, epoch ${countText(b.epoch)}`;
    byId("step-before").disabled = this.at === 0;
    byId("step-after").disabled = this.at === this.list.length - 1;
    byId("batch").replaceChildren(...this.picture(b));
  }

  picture(b) {
    const bars = element("div", { className: "parts" });
    b.parts.forEach((part, i) => {
      const bar = element("div", { className: "part", title: `micro-batch ${i}: ${oneOf(part[0], "sample")}, ${weightText(part)}` },
        element("b", {}, oneOf(part[0], "sample")), weightText(part), element("br"), `loss ${numberText(part[3])}`);
      bar.style.flexGrow = part[0];
      bar.style.background = deviationColour(deviation(part));
      bars.append(bar);
    });
    const facts = [
      ["N", countText(b.samples)], ["micro-batches", countText(b.parts.length)], ["divided by", numberText(b.count)],
      ["learning rate", numberText(b.lr)], ["loss scale", numberText(b.scale)], ["update", b.applied ? "applied" : "skipped"],
    ];
    if (b.norm !== null) facts.push(["gradient norm", numberText(b.norm)], ["clipped by", numberText(b.clip)]);
    const out = [
      bars, element("dl", { className: "figures" }, ...facts.map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    ];
    if (b.marks) out.push(element("ul", {}, ...b.marks.map((text) => element("li", { className: "bad" }, text))));
    out.push(this.partTable(b), ...this.ids(b));
    return out;
  }

  partTable(b) {
    return tableOnDemand("Table: micro-batches", () => table(["micro-batch", "samples", "weight of a sample x N", "mean loss"],
      b.parts.map((part, i) => [countText(i), countText(part[0]),
        part[1] === part[2] ? numberText(part[1]) : `${numberText(part[1])} to ${numberText(part[2])}`, numberText(part[3])])));
  }

  ids(b) {
    if (b.ids === undefined) {
      return [element("p", { className: "note" }, "Sample ids are not known: they were not recorded (--ledger-ids), and those of " +
        "the seed's order do not have the recorded hash.")];
    }
    if (b.ids === null) return [element("p", { className: "note" }, "The ids of this step are left out of the page; ledger.jsonl has them.")];
    let at = 0;
    const list = element("ul", { className: "ids", tabIndex: 0 }, ...b.parts.map(([samples], i) => {
      const ids = b.ids.slice(at, (at += samples));
      return element("li", {}, `micro-batch ${i}: ${ids.join(" ")}`);
    }));
    list.setAttribute("aria-label", "Sample ids");
    const from = b.listed ? "as recorded" : "from the seed; their hash is the recorded one";
    return [element("h3", {}, `Sample ids, ${from}`), list];
  }
}
