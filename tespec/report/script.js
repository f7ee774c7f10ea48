"use strict";
// A click on a column's header sorts its rows: best first, then worst first, then as it was. Rows without a number stay last.
// Groups of rows become one, or are sorted one by one where the table says so.
for (const table of document.querySelectorAll("table.sortable")) {
  const bodies = [...table.tBodies];
  const original = bodies.map((body) => [...body.rows]);
  const isHeading = (row) => row.classList.contains("heading");
  const apart = table.classList.contains("apart");
  const heads = [...table.querySelectorAll("th[data-column]")];
  const restore = () => bodies.forEach((body, index) => body.append(...original[index]));
  const sort = (head) => {
    const order = { none: head.dataset.first, [head.dataset.first]: other(head.dataset.first) };
    const wanted = order[head.getAttribute("aria-sort") || "none"] || "none";
    heads.forEach((each) => each.setAttribute("aria-sort", "none"));
    bodies.forEach((body) => body.replaceChildren());
    if (wanted === "none") { restore(); return; }
    head.setAttribute("aria-sort", wanted);
    const column = Number(head.dataset.column), sign = wanted === "ascending" ? 1 : -1;
    const sorted = (rows) => rows.filter((row) => !isHeading(row))
      .sort((a, b) => compare(a.cells[column], b.cells[column], sign));
    if (apart) bodies.forEach((body, index) => body.append(...original[index].filter(isHeading), ...sorted(original[index])));
    else bodies[0].append(...sorted(original.flat()));
  };
  for (const head of heads) {
    head.addEventListener("click", () => sort(head));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(head); }
    });
  }
}
function other(direction) { return direction === "ascending" ? "descending" : "ascending"; }
function compare(a, b, sign) {
  const [first, second] = [a.dataset.value, b.dataset.value];
  if (first === undefined && second === undefined) return sign * a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  if (first === undefined) return 1;
  if (second === undefined) return -1;
  return sign * (Number(first) - Number(second));
}
// On paper a table is as small as it takes to fit; the page would be shrunk as a whole otherwise.
const PAPER = 1150; // px of the screen across a page on its side: its letters are larger than those in print
addEventListener("beforeprint", () => {
  for (const table of document.querySelectorAll(".wide > table")) table.style.zoom = Math.min(1, PAPER / table.scrollWidth);
});
addEventListener("afterprint", () => {
  for (const table of document.querySelectorAll(".wide > table")) table.style.zoom = "";
});
// A link to a run opens its entry.
function open() {
  const entry = document.querySelector("details:target");
  if (entry) { entry.open = true; entry.scrollIntoView(); }
}
addEventListener("hashchange", open);
open();
