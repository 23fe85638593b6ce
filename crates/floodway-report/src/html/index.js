"use strict";
const runs = new Map(JSON.parse(document.getElementById("runs").textContent).map((run) => [run.place, run]));
const field = (id) => document.getElementById(id);

// Three significant digits, as in the pages.
function number(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  if (size >= 10) return value.toFixed(1);
  return size >= 0.01 ? value.toFixed(2) : value.toExponential(1);
}

function filter() {
  const words = field("text").value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of field("list").tBodies[0].rows) {
    const fits = words.every((word) => row.dataset.words.includes(word)) &&
      (!field("world").value || row.dataset.world === field("world").value) &&
      (!field("verdict").value || row.dataset.verdict === field("verdict").value);
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  field("none").hidden = shown > 0;
}

// The ratio of two headlines and, if both have intervals, its own: distances of independent figures add up as squares on a logarithmic axis.
function ratio([, , a, lowA, highA], [, , b, lowB, highB]) {
  if (!(a > 0) || !(b > 0)) return [null, null, null];
  const value = b / a;
  if (![lowA, highA, lowB, highB].every((end) => end > 0)) return [value, null, null];
  const down = Math.hypot(Math.log(b / lowB), Math.log(highA / a));
  const up = Math.hypot(Math.log(highB / b), Math.log(a / lowA));
  return [value, value * Math.exp(-down), value * Math.exp(up)];
}

const span = (low, high) => (low === null ? "" : `${number(low)} to ${number(high)}`);

function compare() {
  const [a, b] = ["a", "b"].map((id) => runs.get(field(id).value));
  field("comparison").hidden = !(a && b);
  if (!(a && b)) return;
  const others = new Map(b.rows.map((row) => [row[0], row]));
  const table = document.createElement("tbody");
  for (const row of a.rows.filter((row) => others.has(row[0]))) {
    const other = others.get(row[0]);
    const [value, low, high] = ratio(row, other);
    const cells = [row[0], row[1], number(row[2]), span(row[3], row[4]), number(other[2]), span(other[3], other[4]),
      number(value), span(low, high), [row[5], other[5]].filter(Boolean).join(" → ")];
    const line = table.insertRow();
    cells.forEach((text, n) => {
      const cell = line.insertCell();
      cell.textContent = text;
      if (n > 1 && n < 8) cell.className = "n";
    });
  }
  const head = document.createElement("thead");
  const titles = ["figure", "unit", "A", "95 %", "B", "95 %", "B / A", "95 %", "verdict"];
  const line = head.insertRow();
  titles.forEach((text) => {
    const cell = document.createElement("th");
    cell.textContent = text;
    line.append(cell);
  });
  if (!table.rows.length) table.insertRow().insertCell().textContent = "The two runs have no figure in common.";
  field("compared").replaceChildren(head, table);
}

for (const id of ["text", "world", "verdict"]) field(id).addEventListener("input", filter);
for (const id of ["a", "b"]) field(id).addEventListener("input", compare);
