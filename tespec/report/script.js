"use strict";
// A click on a column's header sorts its rows: best first, then worst first, then as it was. Rows without a number stay last.
for (const table of document.querySelectorAll("table.sortable")) {
  const bodies = [...table.tBodies];
  const original = bodies.map((body) => [...body.rows]);
  const rows = original.flat().filter((row) => !row.classList.contains("heading"));
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
    bodies[0].append(...[...rows].sort((a, b) => compare(a.cells[column], b.cells[column], sign)));
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
  if (first === undefined && second === undefined) return sign * a.textContent.localeCompare(b.textContent);
  if (first === undefined) return 1;
  if (second === undefined) return -1;
  return sign * (Number(first) - Number(second));
}
// A link to a run opens its entry.
function open() {
  const entry = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (entry instanceof HTMLDetailsElement) { entry.open = true; entry.scrollIntoView(); }
}
addEventListener("hashchange", open);
open();
