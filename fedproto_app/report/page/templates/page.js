"use strict";
// Tables sort by a button in each head; forms above them filter their rows. Without this the page
// still says everything.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  if (body.rows.length < 2) continue;
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key);
  };
  const compare = (one, two) =>
    typeof one === "number" && typeof two === "number"
      ? (one === two ? 0 : one - two)
      : String(one).localeCompare(String(two), "en", { numeric: true });
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
      // What is unknown stays at the end, whichever way.
      const known = (pair) => pair[0] !== Infinity && pair[0] !== "";
      rows.sort((a, b) => known(b) - known(a) || sign * compare(a[0], b[0]));
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
        const wanted = field.value;
        if (!wanted) return true;
        if (field.dataset.filter === "text")
          return row.cells[0].textContent.toLowerCase().includes(wanted.trim().toLowerCase());
        return row.dataset[field.dataset.filter] === wanted;
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
