// The charts: curves over the steps, each with a table that says the same.
// Lines are drawn in the first colours, which stand out from white and from black.
const [blue, orange, red, green, grey] = ["#4579b4", "#c96f14", "#d94a4c", "#43933a", "#808890"];
const palette = ["#4e79a7", "#f28e2b", "#b07aa1", "#59a14f", "#2fb7b0", "#e15759", "#d9b82f", "#9c755f", "#9aa5b1", "#6b7280"];
const charts = [];

const points = (xs, ys) => xs.map((x, i) => ({ x, y: ys[i] }));

function line(label, colour, data, more = {}) {
  return {
    label, data, borderColor: colour, backgroundColor: colour, borderWidth: 1.6, pointRadius: data.length === 1 ? 3 : 0,
    pointHitRadius: 6, ...more,
  };
}

// The values of a group of steps: their mean, and a band from the smallest to the largest.
function bandLines(label, colour, values) {
  const lines = [line(label, colour, points(run.steps.last, values.mean))];
  if (run.steps.group > 1) {
    const edge = { borderWidth: 0, pointRadius: 0, pointHitRadius: 0, backgroundColor: colour + "33", edge: true };
    lines.push(line("largest", colour, points(run.steps.last, values.high), { ...edge, fill: "+1" }));
    lines.push(line("smallest", colour, points(run.steps.last, values.low), edge));
  }
  return lines;
}

function validationPoints(label, values) {
  const data = run.epochs.filter((e) => e[values] !== null).map((e) => ({ x: e.step, y: e[values] }));
  return line(label, orange, data, { pointRadius: 4, pointStyle: "rectRot", borderDash: [4, 3] });
}

const stepAxis = { text: "step", format: (v) => countText(v) };

// `axes`: { name: { text, format, ... options of Chart.js } }; the first one stands left, the second right. `x`: the same
// for the axis below.
function addChart(id, title, note, datasets, axes, tableOf, x = stepAxis) {
  const canvas = element("canvas", { id: `chart-${id}` });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `${title}. The table below has the numbers.`);
  const figure = element("figure", {}, element("h3", {}, title), element("div", { className: "chart" }, canvas),
    element("figcaption", { className: "note" }, note), tableOnDemand(`Table: ${title}`, tableOf));
  byId("charts").append(figure);
  const names = Object.keys(axes);
  const { text: xText, format: xFormat, ...xMore } = x;
  const scales = {
    x: { type: "linear", title: { display: true, text: xText }, ticks: { callback: (v) => xFormat(v), maxRotation: 0 }, ...xMore },
  };
  names.forEach((name, i) => {
    const { text, format, ...more } = axes[name];
    scales[name] = {
      position: i === 0 ? "left" : "right", title: { display: true, text }, ticks: { callback: format },
      grid: { drawOnChartArea: i === 0 }, ...more,
    };
  });
  const chart = new Chart(canvas, {
    type: "line",
    data: { datasets: datasets.map((d) => ({ yAxisID: names[0], ...d })) },
    options: {
      animation: false, parsing: false, normalized: true, maintainAspectRatio: false,
      interaction: { mode: "nearest", intersect: false, axis: "x" },
      scales,
      plugins: {
        legend: {
          position: "bottom",
          labels: { boxWidth: 10, boxHeight: 10, filter: (item, data) => !data.datasets[item.datasetIndex].edge },
        },
        tooltip: {
          filter: (item) => !item.dataset.edge,
          callbacks: {
            title: (items) => (items.length ? `${xText} ${xFormat(items[0].parsed.x)}` : ""),
            label: (item) => `${item.dataset.label}: ${axes[item.dataset.yAxisID].format(item.parsed.y)}`,
          },
        },
      },
    },
  });
  charts.push({ id, chart });
}

function stepTable(head, columns) {
  return () => table(["step", ...head], spaced(run.steps.last.length).map((i) => {
    const [first, last] = [run.steps.first[i], run.steps.last[i]];
    return [first === last ? countText(first) : `${countText(first)}–${countText(last)}`, ...columns.map((column) => column(i))];
  }));
}

function lossAndAccuracy() {
  const s = run.steps;
  addChart("loss", "Loss", "Training: of each step, as it came. Validation: at the end of an epoch.",
    [...bandLines("training", blue, s.loss), validationPoints("validation", "validation_loss")],
    { y: { text: "loss", format: numberText } },
    stepTable(["mean loss", "smallest", "largest"],
      [(i) => numberText(s.loss.mean[i]), (i) => numberText(s.loss.low[i]), (i) => numberText(s.loss.high[i])]));
  addChart("accuracy", "Accuracy", "Training: of each step's samples, before its update.",
    [...bandLines("training", blue, s.accuracy), validationPoints("validation", "validation_accuracy")],
    { y: { text: "accuracy", format: (v) => percentText(v), suggestedMin: 0, suggestedMax: 1 } },
    stepTable(["mean accuracy", "smallest", "largest"],
      [(i) => percentText(s.accuracy.mean[i]), (i) => percentText(s.accuracy.low[i]), (i) => percentText(s.accuracy.high[i])]));
}

function gap() {
  const epochs = run.epochs.filter((e) => e.validation_loss !== null && e.train_loss !== null);
  const difference = (e, what, sign) => sign * (e["validation_" + what] - e["train_" + what]);
  const style = { pointRadius: 4 };
  addChart("gap", "Gap between training and validation",
    "Of each epoch: validation loss minus training loss, training accuracy minus validation accuracy. A gap that grows is " +
    "overfitting. The training values are means over the epoch, while the weights moved.",
    [line("loss", blue, epochs.map((e) => ({ x: e.step, y: difference(e, "loss", 1) })), style),
      line("accuracy", orange, epochs.map((e) => ({ x: e.step, y: difference(e, "accuracy", -1) })), { ...style, yAxisID: "a" })],
    { y: { text: "loss", format: numberText }, a: { text: "accuracy", format: (v) => `${numberText(100 * v)} points` } },
    () => table(["epoch", "training loss", "validation loss", "gap", "training accuracy", "validation accuracy", "gap"],
      epochs.map((e) => [countText(e.epoch), numberText(e.train_loss), numberText(e.validation_loss),
        numberText(difference(e, "loss", 1)), percentText(e.train_accuracy, 2), percentText(e.validation_accuracy, 2),
        `${numberText(100 * difference(e, "accuracy", -1))} points`])));
}

function throughput() {
  const m = run.monitor;
  const share = { yAxisID: "share" };
  addChart("throughput", "Throughput and where the time went",
    "Of each window of the monitor. Evaluations and checkpoints are not part of it. Busy: CPU time of the compute threads.",
    [line("samples/s", blue, points(m.step, m.samples_per_second)),
      line("waiting for data", red, points(m.step, m.data_wait), share),
      line("threads busy", green, points(m.step, m.busy), { ...share, borderDash: [4, 3] })],
    { y: { text: "samples/s", format: (v) => countText(Math.round(v)), beginAtZero: true },
      share: { text: "share", format: (v) => percentText(v, 0), min: 0, suggestedMax: 1 } },
    () => table(["up to step", "samples/s", "waiting for data", "computing", "rest", "threads busy"],
      spaced(m.step.length).map((i) => [countText(m.step[i]), countText(Math.round(m.samples_per_second[i])),
        ...["data_wait", "compute", "rest", "busy"].map((key) => percentText(m[key][i]))])));
}

function rates() {
  const s = run.steps;
  addChart("lr", "Learning rate and loss scale", "The scale multiplies the loss of a step in fp16; 1: there is none.",
    [line("learning rate", blue, points(s.last, s.lr.mean)),
      line("loss scale", orange, points(s.last, s.scale.mean), { yAxisID: "scale", borderDash: [4, 3] })],
    { y: { text: "learning rate", format: numberText, beginAtZero: true },
      scale: { text: "loss scale", format: numberText, beginAtZero: true } },
    stepTable(["learning rate", "loss scale"], [(i) => numberText(s.lr.mean[i]), (i) => numberText(s.scale.mean[i])]));
}

function memory() {
  const m = run.monitor;
  const roles = Object.keys(m.roles);
  const used = roles.filter((role) => m.roles[role].some((bytes) => bytes > 0) || m.peak_roles[role] > 0);
  const colour = (role) => palette[roles.indexOf(role)];
  const flat = { yAxisID: "y", stack: "lines" };
  addChart("memory", "Memory by role",
    `Areas: between two steps, data and loader included. Highest inside a step: ${bytesText(m.peak)}.`,
    [...used.map((role) => line(role, colour(role), points(m.step, m.roles[role]),
      { fill: "stack", backgroundColor: colour(role) + "aa", borderWidth: 0.5, stack: "roles" })),
    line("allocated, highest so far", red, points(m.step, m.peak_allocated), { ...flat, stack: "peak", borderDash: [4, 3] }),
    line("reserved", grey, points(m.step, m.reserved), { ...flat, stack: "reserved" })],
    { y: { text: "bytes", format: bytesText, stacked: true, beginAtZero: true } },
    () => table(["up to step", ...used, "allocated", "reserved", "highest so far"],
      spaced(m.step.length).map((i) => [countText(m.step[i]), ...used.map((role) => bytesText(m.roles[role][i])),
        bytesText(m.allocated[i]), bytesText(m.reserved[i]), bytesText(m.peak_allocated[i])])));
  const peak = used.filter((role) => m.peak_roles[role] > 0).map((role) => [role, bytesText(m.peak_roles[role]),
    percentText(m.peak > 0 ? m.peak_roles[role] / m.peak : 0)]);
  byId("charts").lastChild.append(tableOnDemand("Table: the peak by role", () => table(["role", "bytes", "share"], peak)));
}

// Colours of the page's theme; on paper those of the light one.
function colourCharts() {
  const style = getComputedStyle(document.documentElement);
  const [text, grid] = ["--muted", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const { chart } of charts) {
    for (const scale of Object.values(chart.options.scales)) {
      scale.ticks.color = scale.title.color = text;
      scale.grid = { ...scale.grid, color: grid };
    }
    chart.options.plugins.legend.labels.color = text;
    chart.update("none");
  }
}

function followTheme() {
  colourCharts();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colourCharts);
  for (const event of ["beforeprint", "afterprint"]) {
    addEventListener(event, () => {
      document.documentElement.classList.toggle("paper", event === "beforeprint");
      charts.forEach(({ chart }) => chart.resize());
      colourCharts();
    });
  }
}

function drawCharts() {
  lossAndAccuracy();
  if (run.epochs.some((e) => e.validation_loss !== null && e.train_loss !== null)) gap();
  if (run.monitor.count > 0) throughput();
  rates();
  if (run.monitor.count > 0) memory();
  followTheme();
}
