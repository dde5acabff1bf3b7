// The treemap: provider, operator, node, by time. A click on an operator's title shows it alone.
const MOST_NODES_OF_AN_OP = 60;
const LEAST_SHARE_SHOWN = 0.0005;
const TITLE = 18; // pixels

// Boxes of values, largest first, each as near to a square as it gets. Source: Bruls, Huizing,
// van Wijk, "Squarified Treemaps", 2000.
const squarified = (values, { x, y, w, h }) => {
  const boxes = [];
  let left = values.reduce((sum, value) => sum + value, 0);
  const worst = (sum, least, most, side) => Math.max((side * side * most) / (sum * sum), (sum * sum) / (side * side * least));
  for (let from = 0; from < values.length; ) {
    const side = Math.min(w, h);
    const scale = (w * h) / left; // square pixels for each unit of value
    let [to, sum] = [from + 1, values[from] * scale];
    while (to < values.length) {
      const next = sum + values[to] * scale;
      if (worst(next, values[to] * scale, values[from] * scale, side) > worst(sum, values[to - 1] * scale, values[from] * scale, side)) break;
      [to, sum] = [to + 1, next];
    }
    const thick = sum / side;
    let along = 0;
    for (let at = from; at < to; at++) {
      const long = (values[at] * scale) / thick;
      boxes.push(w < h ? { x: x + along, y, w: long, h: thick } : { x, y: y + along, w: thick, h: long });
      along += long;
    }
    if (w < h) [y, h] = [y + thick, h - thick];
    else [x, w] = [x + thick, w - thick];
    left = Math.max(left - sum / scale, Number.MIN_VALUE);
    from = to;
  }
  return boxes;
};

// The tree to draw: {label, value, op, index, parts}; an operator's many small nodes are one part.
const treeOf = (times, total) => {
  const indexes = [...times.keys()].filter((index) => times[index] > 0).sort((a, b) => times[b] - times[a]);
  const sum = (list) => list.reduce((all, index) => all + times[index], 0);
  let left = 0;
  const leaf = (index) => ({ label: data.nodes.name[index], value: times[index], op: data.nodes.op[index], index });
  const opPart = ([op, nodes]) => {
    if (nodes.length === 1) return { ...leaf(nodes[0]), label: opName(op) };
    const shown = nodes.slice(0, MOST_NODES_OF_AN_OP).filter((index) => times[index] >= LEAST_SHARE_SHOWN * total);
    const rest = nodes.slice(shown.length);
    left += rest.length;
    const others = rest.length ? [{ label: plural(rest.length, "other node"), value: sum(rest), op }] : [];
    return { label: opName(op), value: sum(nodes), op, parts: [...shown.map(leaf), ...others].sort((a, b) => b.value - a.value) };
  };
  const providers = [...groupBy(indexes, (index) => data.nodes.provider[index])].map(([provider, nodes]) => ({
    label: provider.replace("ExecutionProvider", ""), value: sum(nodes),
    parts: [...groupBy(nodes, (index) => data.nodes.op[index])].map(opPart).sort((a, b) => b.value - a.value),
  })).sort((a, b) => b.value - a.value);
  const root = providers.length === 1 ? providers[0] : { label: "all nodes", value: total, parts: providers };
  return { root, left };
};

const drawTreemap = () => {
  const holder = byId("treemap");
  // Where a device works, the host's time is only what launching takes.
  const onDevice = data.nodes.device.some((value) => value > 0);
  const times = onDevice ? data.nodes.device.map((value) => value ?? 0) : data.nodes.time;
  const total = times.reduce((sum, value) => sum + value, 0);
  if (!(total > 0)) return empty(holder, "No time was measured in nodes.");
  const { root, left } = treeOf(times, total);
  byId("treemap-what").textContent =
    (onDevice ? "time on the device" : "own time") + " a run" + (left ? `; ${plural(left, "small node")} joined as “others”` : "");
  let shown = root;
  let parts = [];
  const textIn = (picture, part, { x, y, h }, lines) => {
    const ink = part.op ? inkOn(colourOf(part.op)) : "currentColor";
    lines.filter(Boolean).forEach((line, at) => {
      if (15 * (at + 1) <= h) picture.append(svg("text", { x: x + 4, y: y + 13 + 15 * at, fill: ink }, line));
    });
  };
  const draw = (picture, part, box) => {
    const { x, y, w, h } = box;
    if (w < 1 || h < 1) return;
    const mark = parts.push(part) - 1;
    const rect = svg("rect", { x, y, width: w, height: h, "data-mark": mark, class: part.index === undefined ? "part" : "part leaf" });
    if (part.op) rect.setAttribute("fill", colourOf(part.op));
    picture.append(rect);
    const whole = (text) => (text.length * CHARACTER <= w - 8 ? text : ""); // a number is never cut
    const [time, share] = [timeText(part.value), percent(part.value / total)];
    const title = part === shown && part !== root ? `← ${part.label}` : part.label;
    if (!part.parts || w < 14 || h < TITLE + 8) return textIn(picture, part, box, [fitted(title, w - 8), whole(`${time}, ${share}`) || whole(time)]);
    textIn(picture, part, { x, y, h: TITLE }, [whole(`${title}: ${time}, ${share}`) || whole(`${title}: ${time}`) || fitted(title, w - 8)]);
    const inner = { x: x + 2, y: y + TITLE, w: w - 4, h: h - TITLE - 2 };
    squarified(part.parts.map((child) => child.value), inner).forEach((place, at) => draw(picture, part.parts[at], place));
  };
  const again = drawnIn(holder, (picture, w, h) => {
    parts = [];
    picture.replaceChildren();
    draw(picture, shown, { x: 0, y: 0, w, h });
  });
  tellOf(holder, (mark) => {
    const part = parts[mark];
    if (!part) return null;
    const what = part.parts ? (part === shown ? (part === root ? "" : "click: all") : "click: this alone") : "";
    return [short(part.label, 90), `${timeText(part.value)}, ${percent(part.value / total)} of all nodes`, what];
  });
  holder.addEventListener("click", (event) => {
    const part = parts[event.target.dataset.mark];
    if (!part) return;
    if (part.index !== undefined) return chooseNode(part.index);
    if (part.parts) shown = part === shown ? root : part;
    again();
  });
};
