// Tables that are refilled often: cells keep their place, so that a reader does not lose it.
import { make } from "./draw.js";
import { word } from "./words.js";

/** `columns`: titles; "#" before one: numbers stand right; "~": wraps. Cells are text. */
export function fillTable(place, columns, rows, empty = "nothing") {
  let table = place.querySelector("table");
  if (rows.length === 0) {
    if (!place.querySelector(".empty")) place.replaceChildren(make("p", { class: "empty" }));
    place.firstChild.textContent = empty;
    return;
  }
  const kinds = columns.map((title) => (title[0] === "#" ? "number" : title[0] === "~" ? "wide" : ""));
  if (!table || table.dataset.columns !== String(columns)) {
    const head = make("tr", {}, ...columns.map((title, i) => make("th", { scope: "col", class: kinds[i] }, word(title.replace(/^[#~]/, "")))));
    table = make("table", {}, make("thead", {}, head), make("tbody"));
    table.dataset.columns = String(columns);
    place.replaceChildren(table);
    if (!place.hasAttribute("tabindex")) place.setAttribute("tabindex", "0"); // what scrolls is reached by keys
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, r) => {
    const row = body.rows[r] || body.insertRow();
    cells.forEach((text, c) => {
      const cell = row.cells[c] || row.insertCell();
      if (cell.className !== kinds[c]) cell.className = kinds[c];
      if (cell.textContent !== String(text)) cell.textContent = text;
    });
  });
}

/** The table that belongs to a picture; it is made while somebody looks at it. */
export function fillDetails(details, columns, rows, empty) {
  details.fill = () => fillTable(details.querySelector(".scroll"), columns, rows(), empty);
  if (!details.dataset.ready) {
    details.dataset.ready = "yes";
    details.addEventListener("toggle", () => details.open && details.fill());
  }
  if (details.open) details.fill();
}
export function makeDetails() {
  return make("details", { class: "data" }, make("summary", {}, "As a table"), make("div", { class: "scroll" }));
}
