// What is known of the chosen node or group, and what hovering says.
const details = make("aside", "", { id: "details", "aria-live": "polite" });
const tip = make("div", "", { id: "tip", hidden: "" });

const link = (side, node) => {
  const made = make("li");
  const button = make("button", graphs[side].nodes.name[node], { type: "button" });
  button.addEventListener("click", () => choose(side, node));
  made.append(button);
  return made;
};
const MOST_LINKS = 60;
const linkList = (title, side, nodes) => {
  if (!nodes.length) return [];
  const counts = [...groupBy(nodes, (node) => graphs[side].nodes.title[node])].sort((a, b) => b[1].length - a[1].length);
  const list = make("ul", "", { class: "links" });
  list.append(...nodes.slice(0, MOST_LINKS).map((node) => link(side, node)));
  if (nodes.length > MOST_LINKS) list.append(make("li", `and ${nodes.length - MOST_LINKS} more`));
  return [make("h4", title), make("div", counts.map(([op, list]) => `${list.length} ${op}`).join(", "), { class: "sub" }), list];
};
const pairs = (rows) => {
  const list = make("dl");
  for (const [name, text] of rows) list.append(make("dt", name), make("dd", text));
  return rows.length ? [list] : [];
};
const valueText = (graph, value) => graph.values.name[value] + (graph.values.type[value] ? `: ${graph.values.type[value]}` : "");
const valueList = (title, graph, values) => {
  if (!values.length) return [];
  const list = make("ul");
  list.append(...values.map((value) => make("li", valueText(graph, value) + (graph.values.weight[value] ? " (weight)" : ""))));
  return [make("h4", title), list];
};
const tellNode = (side, node) => {
  const graph = graphs[side];
  const { nodes } = graph;
  const head = make("h3", nodes.title[node]);
  const chip = make("span", nodes.role[node] === "node" ? (nodes.fused[node] ? "fused kernel" : nodes.family[node]) : nodes.role[node], { class: "chip" });
  chip.style.setProperty("--hue", `var(--${nodes.family[node]})`);
  const away = isPair && nodes.role[node] === "node" ? others[side][node] : [];
  const became = side ? "Stands for" : "Became";
  const gone = isPair && !side && nodes.role[node] === "node" && !away.length ? [["became", "nothing: folded, merged with an equal node, or not needed"]] : [];
  details.replaceChildren(head, chip, make("div", nodes.name[node], { class: "sub" }), ...pairs([...nodes.facts[node], ...gone]),
    ...(nodes.body[node] ? [make("h4", "Function body"), make("pre", data.bodies[nodes.body[node]] ?? "")] : []),
    ...linkList(`${became} ${plural(away.length, "node")}`, 1 - side, away),
    ...(nodes.attributes[node].length ? [make("h4", "Attributes"), ...pairs(nodes.attributes[node])] : []),
    ...valueList("Inputs", graph, nodes.inputs[node]), ...valueList("Outputs", graph, nodes.outputs[node]));
  details.scrollTop = 0;
};
const tellGroup = (side, at) => {
  const graph = graphs[side];
  const group = graph.groups[at];
  details.replaceChildren(make("h3", group.path.join("/") || graph.title), make("div", groupText(graph, at), { class: "sub" }),
    ...linkList("Nodes", side, group.nodes));
};
const tellNothing = () => {
  const fused = isPair ? graphs[1].fusedCount : 0;
  details.replaceChildren(make("h3", isPair ? "Before and after" : graphs[0].title),
    make("p", isPair
      ? `${countText(graphs[0].count)} → ${plural(graphs[1].count, "node")}${fused ? `, of which ${fused} run as generated kernels (filled boxes)` : ""}.`
      : plural(graphs[0].count, "node")),
    make("p", isPair ? "Hover over a node to see what it stands for in the other graph; click for its function body, kernel and times." : "Click on a node for what is known of it.", { class: "sub" }));
};

// Nodes of either graph that go with some of one.
const counterparts = (side, nodes) => new Set(isPair ? nodes.flatMap((node) => others[side][node]) : []);
let chosen = null; // {side, node} or {side, group}
const markChosen = () => {
  for (const pane of panes) {
    if (!chosen) pane.mark(new Set(), null);
    else if (pane.side === chosen.side) pane.mark(new Set(), chosen.node ?? ~chosen.group);
    else pane.mark(counterparts(chosen.side, chosen.node === undefined ? graphs[chosen.side].groups[chosen.group].nodes : [chosen.node]), null);
  }
};
const choose = (side, node, { moves = false } = {}) => {
  chosen = { side, node };
  tellNode(side, node);
  if (moves || !isInView(panes[side], node)) panes[side].reveal([node]);
  const away = [...counterparts(side, [node])];
  if (away.length) panes[1 - side].reveal(away);
  markChosen();
  history.replaceState(null, "", `#node=${encodeURIComponent(graphs[side].nodes.name[node])}`);
};
const chooseGroup = (side, group) => {
  chosen = { side, group };
  tellGroup(side, group);
  markChosen();
};
const clear = () => {
  chosen = null;
  tellNothing();
  markChosen();
  history.replaceState(null, "", "#");
};
const isInView = (pane, node) => {
  const box = pane.placed.boxes.get(node);
  if (!box) return false;
  const { x, y, k } = pane.view;
  return box.x * k + x >= 0 && (box.x + box.w) * k + x <= pane.size.w && box.y * k + y >= 0 && (box.y + box.h) * k + y <= pane.size.h;
};

let hovered = "";
const hover = (pane, event, element) => {
  const wire = event?.target.dataset?.values;
  const key = element ? `${pane.side}:${element.dataset.item}` : (wire ?? "");
  if (event) tip.style.cssText = `left: ${Math.min(event.clientX + 14, innerWidth - 300)}px; top: ${event.clientY + 16}px`;
  if (key === hovered) return;
  hovered = key;
  tip.hidden = !key;
  if (wire) {
    const values = wire.split(" ").map(Number);
    tip.textContent = values.slice(0, 4).map((value) => valueText(pane.graph, value)).join("\n") + (values.length > 4 ? `\nand ${values.length - 4} more` : "");
  } else if (element) {
    const item = Number(element.dataset.item);
    tip.textContent = item < 0 ? `${pane.graph.groups[~item].path.join("/")}: ${groupText(pane.graph, ~item)}` : pane.graph.nodes.name[item];
    if (!isPair || chosen) return;
    panes[1 - pane.side].mark(counterparts(pane.side, item < 0 ? (pane.open.has(~item) ? [] : pane.graph.groups[~item].nodes) : [item]), null);
    return;
  }
  if (isPair && !chosen) panes[1 - pane.side].mark(new Set(), null);
};
