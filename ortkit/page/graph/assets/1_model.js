// Graphs as the page holds them. An item is a node by its number, a group by ~number.
const FAMILIES = ["matmul", "conv", "attention", "norm", "elementwise", "reduction", "movement", "constant", "control", "other"];

const unfold = (columns) =>
  Object.fromEntries(Object.entries(columns).map(([name, column]) =>
    [name, Array.isArray(column) ? column : column.index.map((at) => column.values[at])]));

const graphOf = ({ title, nodes, values, edges, groups }) => {
  const graph = { title, nodes: unfold(nodes), values: unfold(values), edges, groups, routes: new Map() };
  groups.forEach((group, at) => {
    group.inner = [];
    group.count = 0;
    group.nodes = [];
    if (group.parent >= 0) groups[group.parent].inner.push(at);
    for (const [source, target, [first], count] of group.routes) graph.routes.set(`${at}:${source}:${target}`, [first, count]);
  });
  graph.nodes.group.forEach((group, node) => {
    for (let at = group; at >= 0; at = groups[at].parent) groups[at].nodes.push(node);
  });
  graph.count = graph.nodes.role.filter((role) => role === "node").length;
  graph.fusedCount = graph.nodes.fused.filter(Boolean).length;
  return graph;
};
const graphs = data.graphs.map(graphOf);
const isPair = graphs.length > 1;

// What nodes of either graph stand for in the other: `others[0][node of the first]`.
const others = graphs.map((graph) => graph.nodes.name.map(() => []));
data.origins.forEach((origins, node) => {
  others[1][node] = origins;
  for (const origin of origins) others[0][origin].push(node);
});

// The groups that an item is in, innermost first.
const groupsAbove = (graph, item) => {
  const found = [];
  for (let at = item >= 0 ? graph.nodes.group[item] : graph.groups[~item].parent; at >= 0; at = graph.groups[at].parent) found.push(at);
  return found;
};
// What is drawn in the place of a node: the outermost group around it that is closed, else itself.
const shownAs = (graph, node, open) => {
  let item = node;
  for (const group of groupsAbove(graph, node)) if (!open.has(group)) item = ~group;
  return item;
};
// Groups to open at first: from outside inward, as long as few boxes are shown; where nodes were fused,
// groups that are mostly others stay closed.
const openAtFirst = (graph, most) => {
  const open = new Set([0]);
  const sizeOf = (at) => graph.groups[at].layers.flat().filter((item) => item < graph.nodes.name.length).length;
  let shown = sizeOf(0);
  const waiting = [...graph.groups[0].inner];
  while (waiting.length) {
    const at = waiting.shift();
    const fused = graph.groups[at].nodes.filter((node) => graph.nodes.fused[node]).length;
    if (shown + sizeOf(at) > most || (graph.fusedCount && fused < 0.3 * graph.groups[at].nodes.length)) continue;
    shown += sizeOf(at) - 1;
    open.add(at);
    waiting.push(...graph.groups[at].inner);
  }
  return open;
};
