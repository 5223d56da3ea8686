"use strict";
// Tables sort by a button in each column head; forms above them filter their rows. Without this
// script the page still shows everything.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? (a === b ? 0 : a - b)
      : String(a).localeCompare(String(b), "en", { numeric: true });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const heading of heads) heading.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
      // Unknown values stay at the end in both directions.
      const isKnown = (pair) => pair[0] !== Infinity && pair[0] !== "";
      rows.sort((a, b) => isKnown(b) - isKnown(a) || sign * compare(a[0], b[0]));
      body.append(...rows.map((pair) => pair[1]));
    });
  });
}
for (const form of document.querySelectorAll("form.filters")) {
  const rows = [...document.getElementById(form.dataset.table).tBodies[0].rows];
  const fields = [...form.querySelectorAll("[data-filter]")];
  const output = form.querySelector("output");
  const show = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !fields.every((field) => {
        const value = field.value;
        if (!value) return true;
        if (field.dataset.filter === "text")
          return row.cells[0].textContent.toLowerCase().includes(value.trim().toLowerCase());
        return row.dataset[field.dataset.filter] === value;
      });
      shown += !row.hidden;
    }
    output.textContent = `${shown} of ${rows.length} clients`;
  };
  form.hidden = false;
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
}
