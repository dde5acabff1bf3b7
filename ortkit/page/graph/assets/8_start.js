// Everything is drawn once.
const panes = [];
const holder = byId("panes");
holder.classList.toggle("two", isPair);
graphs.forEach((_, side) => panes.push(new Pane(side, holder)));
holder.append(details);
document.body.append(tip);

const used = new Set(graphs.flatMap((graph) => graph.nodes.family));
for (const family of FAMILIES) {
  if (!used.has(family)) continue;
  const item = make("li", family);
  item.prepend(make("i"));
  item.firstChild.style.background = `var(--${family})`;
  byId("legend").append(item);
}
if (graphs.some((graph) => graph.fusedCount)) byId("legend").append(make("li", "filled: a fused kernel"));
if (isPair) byId("legend").append(make("li", "dashed: folded or removed"));

const showTable = ({ title, columns, rows, note }, index) => {
  const section = make("section");
  const line = make("div", "", { class: "line" });
  const what = make("p", "", { class: "what" });
  const filter = make("input", "", { type: "search", "aria-label": `Filter ${title}`, placeholder: "Filter" });
  const more = make("button", "", { type: "button" });
  const table = make("table", "", { id: `table-${index}` });
  const scroll = make("div", "", { class: "rows", tabindex: 0 });
  scroll.append(table);
  line.append(make("h2", title), what, filter, more);
  section.append(line, scroll, make("p", note, { class: "hint" }));
  byId("tables").append(section);
  const isNumber = columns.map((_, at) => rows.some((row) => typeof row[at] === "number"));
  const source = Object.fromEntries(columns.map((_, at) => [at, rows.map((row) => row[at] ?? (isNumber[at] ? null : ""))]));
  makeTable({ table, filter, what, more, source, noun: "row",
    columns: columns.map((name, at) => ({ title: name, field: at, number: isNumber[at], wraps: true, text: isNumber[at] ? significant : String })) });
};

tellNothing();
addEventListener("hashchange", followLink);
try {
  data.tables.forEach(showTable);
} finally {
  document.documentElement.dataset.ready = "yes"; // what could be drawn is shown
}
for (const pane of panes) pane.resized();
followLink();
