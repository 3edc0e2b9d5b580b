// The page of a sweep: findings, tables, charts over the batch size. `run` is what the command found.
const batchText = (v) => countText(v);
const batchesOf = (found) => (found ? found.rows.map((r) => r.batch) : []);
const batches = [...new Set([...batchesOf(run.sweep), ...batchesOf(run.learning)])].sort((a, b) => a - b);
// Ticks at the batches themselves.
const batchAxis = {
  text: "batch", format: batchText, type: "logarithmic", min: batches[0] / 1.1, max: 1.1 * batches[batches.length - 1],
  afterBuildTicks: (axis) => { axis.ticks = batches.map((value) => ({ value })); },
};
const milliseconds = (s, digits = 3) => `${(1e3 * s).toFixed(digits)} ms`;
const pick = (i) => palette[i % palette.length];

function addTable(title, head, rows) {
  const box = element("div", { className: "scroll", tabIndex: 0 }, table(head, rows));
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", title);
  byId("tables").append(element("h3", {}, title), box);
}

// A line with dots, and a band from low to high around it.
function banded(label, colour, xs, ys, lows, highs, more = {}) {
  const edge = { borderWidth: 0, pointRadius: 0, pointHitRadius: 0, backgroundColor: colour + "33", edge: true };
  return [
    line(label, colour, points(xs, ys), { pointRadius: 3, ...more }),
    line("high", colour, points(xs, highs), { ...edge, fill: "+1", ...more }),
    line("low", colour, points(xs, lows), { ...edge, ...more }),
  ];
}

// ---- time and memory
function sweepTable(sweep) {
  const head = ["batch", "step", "± half IQR", "samples/s", "a sample", "busy", "peak allocated", "predicted", "peak reserved",
    "predicted", ""];
  addTable("Time and memory of a step", head, sweep.rows.map((r) => {
    if (!r.fits) {
      return [countText(r.batch), "–", "–", "–", "–", "–", "–", bytesText(r.predicted_allocated_bytes), "–",
        bytesText(r.predicted_reserved_bytes), r.why];
    }
    const marks = [r.batch === sweep.knee ? "knee" : "", r.noisy ? "noisy" : ""].filter(Boolean).join(", ");
    return [countText(r.batch), milliseconds(r.step_seconds), percentText(r.iqr_share / 2), countText(Math.round(r.samples_per_second)),
      milliseconds(r.seconds_per_sample, 4), percentText(r.busy, 0), bytesText(r.peak_allocated_bytes),
      bytesText(r.predicted_allocated_bytes), bytesText(r.peak_reserved_bytes), bytesText(r.predicted_reserved_bytes), marks];
  }));
}

function sweepCharts(sweep) {
  const rows = sweep.rows.filter((r) => r.fits), sizes = rows.map((r) => r.batch);
  const column = (get) => rows.map(get);
  if (rows.length > 0) {
    const best = Math.max(...column((r) => r.samples_per_second));
    const knee = rows.filter((r) => r.batch === sweep.knee);
    addChart("throughput", "Throughput",
      `Band: quartiles. The knee is the smallest batch with ${percentText(sweep.knee_share, 0)} of the best samples/s.`,
      [...banded("samples/s", palette[0], sizes, column((r) => r.samples_per_second), column((r) => r.batch / r.step_seconds_high),
        column((r) => r.batch / r.step_seconds_low)),
      line(`${percentText(sweep.knee_share, 0)} of the best`, "#808890",
        [{ x: sizes[0], y: sweep.knee_share * best }, { x: sizes[sizes.length - 1], y: sweep.knee_share * best }], { borderDash: [4, 3] }),
      line("knee", palette[5], knee.map((r) => ({ x: r.batch, y: r.samples_per_second })), { pointRadius: 7, pointStyle: "rectRot", showLine: false })],
      { y: { text: "samples/s", format: (v) => countText(Math.round(v)), beginAtZero: true } },
      () => table(["batch", "samples/s"], rows.map((r) => [countText(r.batch), countText(Math.round(r.samples_per_second))])), batchAxis);
    addChart("time", "Time of a step and of a sample", "Medians; band: quartiles of the step.",
      [...banded("step", palette[0], sizes, column((r) => r.step_seconds), column((r) => r.step_seconds_low), column((r) => r.step_seconds_high)),
        line("a sample", palette[1], points(sizes, column((r) => r.seconds_per_sample)), { yAxisID: "s", pointRadius: 3 })],
      { y: { text: "step", format: (v) => milliseconds(v, 1), beginAtZero: true },
        s: { text: "a sample", format: (v) => milliseconds(v), beginAtZero: true } },
      () => table(["batch", "step", "a sample"], rows.map((r) => [countText(r.batch), milliseconds(r.step_seconds), milliseconds(r.seconds_per_sample, 4)])),
      batchAxis);
    addChart("busy", "Busy threads", "CPU time of the compute threads over time x threads; waiting threads spin for a moment and count as busy.",
      [line("busy", palette[3], points(sizes, column((r) => r.busy)), { pointRadius: 3 })],
      { y: { text: "busy", format: (v) => percentText(v, 0), min: 0, suggestedMax: 1 } },
      () => table(["batch", "busy"], rows.map((r) => [countText(r.batch), percentText(r.busy)])), batchAxis);
  }
  const all = sweep.rows.map((r) => r.batch), dash = { borderDash: [4, 3], pointRadius: 2 };
  addChart("memory", "Peak memory, measured and predicted", "Predicted by a dry run; dots: measured. A batch that does not fit has a prediction only.",
    [line("allocated, predicted", palette[0], points(all, sweep.rows.map((r) => r.predicted_allocated_bytes)), dash),
      line("allocated, measured", palette[0], points(sizes, column((r) => r.peak_allocated_bytes)), { showLine: false, pointRadius: 4 }),
      line("reserved, predicted", palette[1], points(all, sweep.rows.map((r) => r.predicted_reserved_bytes)), dash),
      line("reserved, measured", palette[1], points(sizes, column((r) => r.peak_reserved_bytes)), { showLine: false, pointRadius: 4 })],
    { y: { text: "bytes", format: bytesText, beginAtZero: true } },
    () => table(["batch", "allocated, predicted", "allocated", "reserved, predicted", "reserved"], sweep.rows.map((r) => [countText(r.batch),
      bytesText(r.predicted_allocated_bytes), r.fits ? bytesText(r.peak_allocated_bytes) : "–", bytesText(r.predicted_reserved_bytes),
      r.fits ? bytesText(r.peak_reserved_bytes) : "–"])), batchAxis);
}

// ---- learning
const rangeText = (range, format) => (range === null ? "–" : range.runs > 1
  ? `${format(range.mean)} (${format(range.least)} to ${format(range.most)})` : format(range.mean));

function learningTable(learning) {
  const pointsText = (v) => `${(100 * v).toFixed(2)} points`;
  addTable(`Learning: after ${countText(learning.after_samples)} samples`,
    ["batch", "policy", "learning rate", "validation accuracy", "training loss", "validation loss", "gap", "epochs to target", "seconds to target", "noise scale"],
    learning.rows.map((r) => [countText(r.batch), r.policy, numberText(r.lr), rangeText(r.accuracy, (v) => percentText(v, 2)),
      rangeText(r.train_loss, numberText), rangeText(r.validation_loss, numberText), rangeText(r.gap, pointsText),
      rangeText(r.epochs_to_target, numberText), rangeText(r.seconds_to_target, numberText), rangeText(r.noise_scale, (v) => countText(Math.round(v)))]));
}

// The mean over the seeds, epoch by epoch.
function meanCurve(row, key) {
  const longest = Math.max(0, ...row.runs.map((r) => r.points.length));
  const curve = [];
  for (let i = 0; i < longest; i++) {
    const values = row.runs.map((r) => r.points[i]).filter((p) => p && p[key] !== null);
    if (values.length > 0) curve.push({ x: values[0].samples, y: values.reduce((sum, p) => sum + p[key], 0) / values.length });
  }
  return curve;
}

function learningCurves(learning, policy) {
  const rows = learning.rows.filter((r) => r.policy === policy), samples = { text: "samples", format: batchText };
  const curves = (what) => rows.flatMap((r, i) => [
    line(`${r.batch}, training`, pick(i), meanCurve(r, `train_${what}`), { pointRadius: 2 }),
    line(`${r.batch}, validation`, pick(i), meanCurve(r, `validation_${what}`), { pointRadius: 2, borderDash: [5, 4] }),
  ]);
  const tableOf = (what, format) => () => table(["batch", "samples", "training", "validation"], rows.flatMap((r) => {
    const validation = meanCurve(r, `validation_${what}`);
    return meanCurve(r, `train_${what}`).map((p, i) => [countText(r.batch), countText(p.x), format(p.y), validation[i] ? format(validation[i].y) : "–"]);
  }));
  const note = "Means over the seeds. Solid: training, a mean over the epoch while the weights moved; dashed: validation at its end.";
  addChart(`loss-${policy}`, `Loss, policy ${policy}`, note, curves("loss"), { y: { text: "loss", format: numberText } }, tableOf("loss", numberText), samples);
  addChart(`accuracy-${policy}`, `Accuracy, policy ${policy}`, note, curves("accuracy"),
    { y: { text: "accuracy", format: (v) => percentText(v) } }, tableOf("accuracy", (v) => percentText(v, 2)), samples);
}

// One line a policy over the batch size.
function overBatches(id, title, note, learning, key, axis) {
  const policies = [...new Set(learning.rows.map((r) => r.policy))];
  const rowsOf = (policy) => learning.rows.filter((r) => r.policy === policy && r[key] !== null);
  if (policies.every((p) => rowsOf(p).length === 0)) return;
  addChart(id, title, note, policies.flatMap((policy, i) => {
    const rows = rowsOf(policy);
    return banded(policy, pick(i), rows.map((r) => r.batch), ...["mean", "least", "most"].map((part) => rows.map((r) => r[key][part])));
  }), { y: axis }, () => table(["batch", "policy", "mean", "least", "most", "runs"], policies.flatMap((policy) => rowsOf(policy).map((r) =>
    [countText(r.batch), policy, ...["mean", "least", "most"].map((part) => axis.format(r[key][part])), countText(r[key].runs)]))), batchAxis);
}

function learningCharts(learning) {
  const band = "Mean over the seeds; band: least to most.";
  overBatches("accuracy", `Validation accuracy after ${countText(learning.after_samples)} samples`, band, learning, "accuracy",
    { text: "accuracy", format: (v) => percentText(v) });
  overBatches("seconds", "Seconds to the target", `${band} Seeds that did not reach it are not in the mean.`, learning, "seconds_to_target",
    { text: "seconds", format: numberText, beginAtZero: true });
  overBatches("gap", "Gap between training and validation accuracy", band, learning, "gap",
    { text: "training - validation", format: (v) => percentText(v) });
  overBatches("noise", "Gradient noise scale", `${band} Of the final weights: the batch at which noise and gradient are equally large.`, learning, "noise_scale",
    { text: "noise scale", format: (v) => countText(Math.round(v)), beginAtZero: true });
  for (const policy of new Set(learning.rows.map((r) => r.policy))) learningCurves(learning, policy);
}

// ---- single operations
function labExperiment(e, i) {
  const title = `${e.op}, ${e.shape}`, places = e.rows.map((r, at) => at);
  // Bands of noisy rows may reach far beyond.
  const most = 1.15 * Math.max(...e.rows.map((r) => Math.max(r.measured_ratio, r.predicted_ratio)));
  const head = ["size", "a call", "against", "predicted", "measured", "± noise", "verdict"];
  const rows = e.rows.map((r) => [countText(r.size), milliseconds(r.seconds, 4), countText(r.reference), r.predicted_ratio.toFixed(3),
    r.measured_ratio.toFixed(3), r.noise.toFixed(3), r.verdict]);
  addTable(`${title}; cost per ${e.unit}`, head, rows);
  addChart(`lab-${i}`, title, `Cost per ${e.unit} against the nearest multiple of 16. Band: quartiles of the measured ratios.`,
    [line("predicted", palette[1], points(places, e.rows.map((r) => r.predicted_ratio)), { pointRadius: 5, pointStyle: "rectRot", borderDash: [4, 3] }),
      ...banded("measured", palette[0], places, e.rows.map((r) => r.measured_ratio), e.rows.map((r) => r.measured_ratio_low),
        e.rows.map((r) => r.measured_ratio_high))],
    { y: { text: "cost ratio", format: (v) => v.toFixed(2), min: 0, max: most } }, () => table(head, rows),
    { text: "size", format: (at) => (e.rows[at] ? countText(e.rows[at].size) : ""), ticks: { stepSize: 1, callback: (at) => (e.rows[at] ? countText(e.rows[at].size) : "") } });
}

// ---- the page
function findings() {
  const items = [];
  const { sweep, learning, lab } = run;
  if (sweep) {
    items.push(["", sweep.knee === null ? "No batch was measured." :
      `The knee is batch ${countText(sweep.knee)}: the smallest with at least ${percentText(sweep.knee_share, 0)} of the best samples/s.`]);
    const fits = sweep.rows.filter((r) => r.fits), noisy = fits.filter((r) => r.noisy).map((r) => r.batch);
    const exact = fits.every((r) => r.peak_allocated_bytes === r.predicted_allocated_bytes && r.peak_reserved_bytes === r.predicted_reserved_bytes);
    if (fits.length > 0) items.push([exact ? "good" : "bad", exact ? "Every peak of memory is as predicted, to the byte." : "A peak of memory is not as predicted: see the table."]);
    if (noisy.length > 0) items.push(["bad", `Noisy, compare with care: batch ${noisy.map(batchText).join(", ")}.`]);
    for (const r of sweep.rows.filter((row) => !row.fits)) items.push(["bad", `Batch ${countText(r.batch)}: ${r.why}.`]);
  }
  if (learning) {
    for (const r of learning.rows) for (const text of r.warnings) items.push(["bad", `Batch ${countText(r.batch)}, ${r.policy}: ${text}.`]);
  }
  if (lab) {
    items.push(["", `${oneOf(lab.agree, "size")} agree with the prediction within ${percentText(lab.agree_within, 0)}, ` +
      `${countText(lab.disagree)} disagree, ${countText(lab.noisy)} are too noisy to tell.`]);
    items.push(["", `The prediction knows two effects: whole panels of ${lab.panel} columns (channels, features), and tasks over ${oneOf(lab.threads, "thread")}.`]);
  }
  byId("findings").append(element("ul", {}, ...items.map(([className, text]) => element("li", { className }, text))));
}

function figures() {
  const { sweep, learning, lab } = run;
  const facts = [["threads", (sweep || lab).threads]];
  if (sweep) facts.push(["model", sweep.model]);
  if (learning) {
    facts.push(["data", learning.data], ["optimizer", learning.optimizer], ["training samples", countText(learning.training_samples)],
      ["validation samples", countText(learning.validation_samples)], ["epochs a run", learning.epochs]);
  }
  if (lab) facts.push(["instruction set", lab.isa]);
  facts.push(["limpid", run.version]);
  byId("figures").append(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

figures();
findings();
if (run.sweep) {
  sweepTable(run.sweep);
  sweepCharts(run.sweep);
}
if (run.learning) {
  learningTable(run.learning);
  learningCharts(run.learning);
}
if (run.lab) run.lab.experiments.forEach(labExperiment);
followTheme();

// For tests: what is on the screen, as numbers.
window.limpidSweep = () => ({
  charts: charts.map(({ id, chart }) => ({
    id, width: chart.width, height: chart.height, points: chart.data.datasets.map((d) => d.data.length),
    labels: chart.data.datasets.map((d) => d.label),
  })),
});
