// Edges as curves: between what is shown of both ends, over the stops of every group on the way.
const stopsOn = (graph, scene, at, source, target) => {
  const [first, count] = graph.routes.get(`${at}:${source}:${target}`) ?? [0, 0];
  return Array.from({ length: count }, (_, index) => scene.stops.get(`${at}:${first + index}`)).filter(Boolean);
};
const wiresOf = (graph, open, scene) => {
  const wires = new Map();
  const shown = graph.nodes.name.map((_, node) => shownAs(graph, node, open));
  graph.edges.source.forEach((source, edge) => {
    const [target, value] = [graph.edges.target[edge], graph.edges.value[edge]];
    const [from, to] = [shown[source], shown[target]];
    if (from === to) return;
    const key = `${from}>${to}`;
    if (wires.has(key)) return wires.get(key).values.add(value);
    wires.set(key, { from, to, source, target, values: new Set([value]), stops: wayOf(graph, scene, source, target, from, to) });
  });
  const arriving = groupBy([...wires.values()], (wire) => wire.to);
  for (const [to, list] of arriving) {
    const box = scene.boxes.get(to);
    const lastX = (wire) => wire.stops.at(-1)?.x ?? middle(scene.boxes.get(wire.from));
    list.sort((a, b) => lastX(a) - lastX(b)).forEach((wire, at) => {
      wire.x = middle(box) + (at - (list.length - 1) / 2) * Math.min(14, box.w / (list.length + 1));
    });
  }
  for (const wire of wires.values()) shape(scene, wire);
  return [...wires.values()];
};
const middle = (box) => box.x + box.w / 2;

// The stops from one item to another: out of the groups of the source, across, into those of the target.
const wayOf = (graph, scene, source, target, from, to) => {
  const above = groupsAbove(graph, from);
  const below = groupsAbove(graph, to);
  const common = above.find((group) => below.includes(group));
  const stops = [];
  let item = from;
  for (const group of above) {
    if (group === common) break;
    stops.push(...stopsOn(graph, scene, group, item, source));
    item = ~group;
  }
  const inward = below.slice(0, below.indexOf(common)); // innermost first
  const heads = [to, ...inward.map((group) => ~group)];
  stops.push(...stopsOn(graph, scene, common, item, heads.at(-1)));
  for (let at = inward.length - 1; at >= 0; at--) stops.push(...stopsOn(graph, scene, inward[at], source, heads[at]));
  return stops;
};
const shape = (scene, wire) => {
  const [start, end] = [scene.boxes.get(wire.from), scene.boxes.get(wire.to)];
  let [x, y] = [middle(start), start.y + start.h];
  const path = [`M${x.toFixed(1)} ${y.toFixed(1)}`];
  let [left, right] = [x, x];
  const curve = (toX, toY) => {
    const bend = Math.max(12, (toY - y) / 2);
    path.push(`C${x.toFixed(1)} ${(y + bend).toFixed(1)} ${toX.toFixed(1)} ${(toY - bend).toFixed(1)} ${toX.toFixed(1)} ${toY.toFixed(1)}`);
    [x, y] = [toX, toY];
    [left, right] = [Math.min(left, x), Math.max(right, x)];
  };
  for (const stop of wire.stops) {
    if (stop.top <= y) continue;
    curve(stop.x, stop.top);
    if (stop.bottom > stop.top) path.push(`V${stop.bottom.toFixed(1)}`);
    y = stop.bottom;
  }
  curve(wire.x, end.y - 5);
  Object.assign(wire, { path: path.join(""), end: [wire.x, end.y], left, right, top: start.y + start.h, bottom: end.y });
  wire.far = !wire.stops.length && wire.bottom - wire.top > 600;
};
