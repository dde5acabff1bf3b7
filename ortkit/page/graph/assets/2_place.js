// Where everything is: layers come from the page's data, coordinates follow from which groups are open.
const GAP = { node: 16, stop: 9, layer: 30 };
const PAD = { side: 12, top: 26, bottom: 12 };
const ROUNDS = 8;
const widthOf = (text, per) => text.length * per;

const nodeSize = (graph, node) => {
  const { title, detail } = graph.nodes;
  const wide = Math.max(widthOf(short(title[node], 34), 7.4), widthOf(short(detail[node], 34), 5.9));
  return { w: Math.max(64, wide + 20), h: detail[node] ? 38 : 26 };
};
const groupText = (graph, at) => {
  const group = graph.groups[at];
  const fused = group.nodes.filter((node) => graph.nodes.fused[node]).length;
  return plural(group.nodes.length, "node") + (fused ? `, ${fused} fused` : "");
};
const closedSize = (graph, at) =>
  ({ w: Math.max(130, widthOf(short(graph.groups[at].name, 34), 7.4) + 44, widthOf(groupText(graph, at), 5.9) + 24), h: 46 });

// Positions in the order given, at least `apart[i]` between i and i + 1, nearest to what is wanted.
// Source: pool adjacent violators (isotonic regression); Ayer and others (1955).
const inOrderNear = (wanted, weights, apart) => {
  const shift = [0];
  for (let at = 1; at < wanted.length; at++) shift.push(shift[at - 1] + apart[at - 1]);
  const pools = [];
  for (let at = 0; at < wanted.length; at++) {
    let pool = { sum: (wanted[at] - shift[at]) * weights[at], weight: weights[at], count: 1 };
    while (pools.length && pools.at(-1).sum / pools.at(-1).weight > pool.sum / pool.weight) {
      const last = pools.pop();
      pool = { sum: last.sum + pool.sum, weight: last.weight + pool.weight, count: last.count + pool.count };
    }
    pools.push(pool);
  }
  return pools.flatMap((pool) => Array(pool.count).fill(pool.sum / pool.weight)).map((value, at) => value + shift[at]);
};

// One group by itself: {w, h, boxes: item -> {x, y, w, h, inner?}, stops: stop -> {x, top, bottom}}.
const placeGroup = (graph, at, open) => {
  const group = graph.groups[at];
  const isStop = (item) => item >= graph.nodes.name.length;
  const sizes = new Map();
  for (const item of group.layers.flat()) {
    if (isStop(item)) sizes.set(item, { w: 4, h: 0 });
    else if (item >= 0) sizes.set(item, nodeSize(graph, item));
    else if (!open.has(~item)) sizes.set(item, closedSize(graph, ~item));
    else {
      const inner = placeGroup(graph, ~item, open);
      const least = widthOf(short(graph.groups[~item].name, 40), 7.4) + 40;
      sizes.set(item, { w: Math.max(least, inner.w + 2 * PAD.side), h: inner.h + PAD.top + PAD.bottom, inner });
    }
  }
  const near = { up: new Map(), down: new Map() };
  const layerOf = new Map(group.layers.flatMap((layer, index) => layer.map((item) => [item, index])));
  const link = (from, to) => {
    if (layerOf.get(to) !== layerOf.get(from) + 1) return;
    near.down.set(from, [...(near.down.get(from) ?? []), to]);
    near.up.set(to, [...(near.up.get(to) ?? []), from]);
  };
  for (const [source, target, [first], count] of group.routes) {
    const way = [source, ...Array.from({ length: count }, (_, index) => first + index), target];
    for (let index = 1; index < way.length; index++) if (layerOf.has(way[index - 1]) && layerOf.has(way[index])) link(way[index - 1], way[index]);
  }
  const centre = new Map();
  const apartIn = (layer) => layer.slice(1).map((item, index) => {
    const gap = isStop(item) && isStop(layer[index]) ? GAP.stop : GAP.node;
    return (sizes.get(layer[index]).w + sizes.get(item).w) / 2 + gap;
  });
  const aparts = group.layers.map(apartIn);
  group.layers.forEach((layer, index) => {
    const total = aparts[index].reduce((sum, value) => sum + value, 0);
    let x = -total / 2;
    layer.forEach((item, place) => {
      centre.set(item, x);
      x += aparts[index][place] ?? 0;
    });
  });
  const settle = (index, neighbours) => {
    const layer = group.layers[index];
    const wanted = layer.map((item) => {
      const list = neighbours.get(item);
      return list ? list.reduce((sum, one) => sum + centre.get(one), 0) / list.length : centre.get(item);
    });
    const weights = layer.map((item) => (!neighbours.has(item) ? 0.05 : isStop(item) ? 3 : 1));
    inOrderNear(wanted, weights, aparts[index]).forEach((x, place) => centre.set(layer[place], x));
  };
  const depth = group.layers.length;
  for (let round = 0; round < ROUNDS; round++) {
    if (round % 2) for (let index = depth - 2; index >= 0; index--) settle(index, near.down);
    else for (let index = 1; index < depth; index++) settle(index, near.up);
  }
  let [left, right, y] = [Infinity, -Infinity, 0];
  for (const [item, x] of centre) [left, right] = [Math.min(left, x - sizes.get(item).w / 2), Math.max(right, x + sizes.get(item).w / 2)];
  const placed = { w: Math.max(0, right - left), h: 0, boxes: new Map(), stops: new Map() };
  for (const layer of group.layers) {
    const high = maxOf(layer.map((item) => sizes.get(item).h));
    for (const item of layer) {
      const { w, h, inner } = sizes.get(item);
      const x = centre.get(item) - left;
      if (isStop(item)) placed.stops.set(item, { x, top: y, bottom: y + high });
      else placed.boxes.set(item, { x: x - w / 2, y: y + (high - h) / 2, w, h, inner });
    }
    y += high + GAP.layer;
  }
  placed.h = Math.max(0, y - GAP.layer);
  return placed;
};

// All that is shown, in one system of coordinates: {w, h, boxes: item -> box, wires}.
const place = (graph, open) => {
  const root = placeGroup(graph, 0, open);
  const scene = { w: root.w, h: root.h, boxes: new Map(), stops: new Map() };
  const spread = (placed, at, dx, dy) => {
    for (const [stop, { x, top, bottom }] of placed.stops) scene.stops.set(`${at}:${stop}`, { x: x + dx, top: top + dy, bottom: bottom + dy });
    for (const [item, box] of placed.boxes) {
      scene.boxes.set(item, { item, x: box.x + dx, y: box.y + dy, w: box.w, h: box.h, open: Boolean(box.inner) });
      if (box.inner) spread(box.inner, ~item, box.x + dx + (box.w - box.inner.w) / 2, box.y + dy + PAD.top);
    }
  };
  spread(root, 0, 0, 0);
  scene.wires = wiresOf(graph, open, scene);
  return scene;
};
