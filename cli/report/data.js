// The data of the page, texts for numbers, and small parts of HTML. Text from the run goes in as text nodes only.
const run = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

const countText = (n) => n.toLocaleString("en-US");
const percentText = (x, digits = 1) => (x === null ? "–" : `${(100 * x).toFixed(digits)} %`);
const numberText = (x) => (x === null || x === undefined ? "not finite" : String(Number(x.toPrecision(5))));
const oneOf = (n, thing) => `${countText(n)} ${thing}${n === 1 ? "" : "s"}`;

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit + 1 < units.length) {
    bytes /= 1024;
    unit++;
  }
  return `${unit === 0 ? bytes : bytes.toFixed(2)} ${units[unit]}`;
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, properties);
  made.append(...children);
  return made;
}

// Rows of texts; the first one is the head.
function table(head, rows) {
  return element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((text) => element("td", {}, text))))));
}

// A table that is made when it is opened.
function tableOnDemand(label, make) {
  const details = element("details", {}, element("summary", {}, label));
  details.addEventListener("toggle", () => {
    if (details.open && !details.querySelector("table")) {
      const box = element("div", { className: "scroll", tabIndex: 0 }, make());
      box.setAttribute("role", "region");
      box.setAttribute("aria-label", label);
      details.append(box);
    }
  });
  return details;
}

// At most this many rows, evenly spaced, the last one among them.
function spaced(count, most = 200) {
  const every = Math.max(1, Math.ceil(count / most));
  const rows = [];
  for (let i = 0; i < count; i += every) rows.push(i);
  if (count > 0 && rows[rows.length - 1] !== count - 1) rows.push(count - 1);
  return rows;
}
