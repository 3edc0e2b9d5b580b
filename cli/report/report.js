// The page's own texts, and the start of everything.
function figures() {
  const [settings, last, end] = [run.run.settings, run.epochs[run.epochs.length - 1], run.steps.last.length - 1];
  const facts = [
    ["data", settings.data], ["model", settings.model], ["optimizer", `${settings.optimizer}, lr ${numberText(settings.lr)}`],
    ["steps", countText(run.steps.count)], ["epochs finished", countText(run.epochs.length)],
  ];
  if (end >= 0) facts.push(["last training loss", numberText(run.steps.loss.mean[end])]);
  if (last && last.validation_accuracy !== null) facts.push(["validation accuracy", percentText(last.validation_accuracy, 2)]);
  if (run.diagnosis) facts.push(["samples/s", countText(Math.round(run.diagnosis.samples_per_second))]);
  if (run.monitor.count > 0) facts.push(["peak allocated", bytesText(run.monitor.peak)]);
  facts.push(["started", run.run.created], ["limpid", run.run.limpid]);
  byId("figures").append(...facts.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
}

function findings() {
  const check = run.check;
  const items = [];
  if (run.diagnosis) items.push(["", `Diagnosis: ${run.diagnosis.text}`]);
  const extent = `${oneOf(check.steps, "step")}, ${oneOf(check.samples, "sample")}, ${oneOf(check.whole_epochs, "whole epoch")}; ` +
    `largest |weight N - 1|: ${numberText(check.largest_weight_error)}`;
  items.push(check.ok ? ["good", `Ledger: every sample was used once an epoch, with the weight 1/N (${extent}).`]
    : ["bad", `Ledger: not every sample was used once an epoch with the weight 1/N (${extent}):`]);
  for (const text of check.violations) items.push(["bad", text]);
  for (const text of run.warnings) items.push(["bad", `Warning: ${text}`]);
  for (const text of run.notes) items.push(["", `Note: ${text}`]);
  byId("findings").append(element("ul", {}, ...items.map(([className, text]) => element("li", { className }, text))));
}

function plan() {
  const p = run.plan;
  const list = (sizes) => (sizes.length ? sizes.join(" + ") : "–");
  byId("plan").append(element("p", {}, `${p.text}.`), table(["steps", "samples", "micro-batches", "weight of a sample"], [
    ...(p.micro_batches.length ? [[countText(p.steps - (p.tail > 0 ? 1 : 0)), countText(p.effective_batch), list(p.micro_batches), `1/${p.effective_batch}`]] : []),
    ...(p.tail > 0 ? [["1 (the last)", countText(p.tail), list(p.tail_micro_batches), `1/${p.tail}`]] : []),
    ...(p.dropped.length ? [["none", `${countText(p.dropped.length)} (drop-last)`, "–", "0"]] : []),
  ]));
}

function settings() {
  const text = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const rows = (object) => Object.entries(object).map(([key, value]) => [key, text(value)]);
  byId("settings").append(
    element("div", {}, element("h3", {}, "Of the run"), table(["setting", "value"], rows(run.run.settings))),
    element("div", {}, element("h3", {}, "Machine"), table(["machine", "value"], rows(run.run.machine))));
}

function thinning() {
  const parts = [];
  if (run.steps.group > 1) {
    parts.push(`The run has ${countText(run.steps.count)} steps; a point stands for ${run.steps.group} of them: the line is ` +
      `their mean, the band goes from the smallest to the largest.`);
  }
  if (run.monitor.group > 1) {
    parts.push(`The monitor has ${countText(run.monitor.count)} records; a point stands for ${run.monitor.group}: rates and ` +
      `shares over them together, the largest of their bytes.`);
  }
  parts.push("Steps and epochs are counted from 0, as in the ledger. The tables below the charts have the same numbers.");
  byId("thinned").textContent = parts.join(" ");
}

figures();
findings();
thinning();
drawCharts();
const picture = new BatchPicture(run.batches);
plan();
settings();

// For tests: what is on the screen, as numbers.
window.limpidReport = () => ({
  charts: charts.map(({ id, chart }) => ({
    id, width: chart.width, height: chart.height, points: chart.data.datasets.map((d) => d.data.length),
    labels: chart.data.datasets.map((d) => d.label), colours: chart.data.datasets.map((d) => d.borderColor),
    textColour: chart.options.scales.x.ticks.color,
    tooltip: chart.tooltip.opacity > 0 ? [...chart.tooltip.title, ...chart.tooltip.body.flatMap((part) => part.lines)] : [],
  })),
  at: picture.at, batch: picture.list[picture.at], marked: picture.marked, batches: picture.list.length,
});
