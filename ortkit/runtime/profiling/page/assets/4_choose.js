// One node is chosen at a time, wherever it was clicked: marked in the timeline and the table, told in full.
const details = byId("details");
const field = (name, value) => {
  const line = make("div");
  line.append(make("b", `${name} `), value);
  return line;
};
const tell = (index, bar) => {
  const one = node(index);
  const parts = [field("Node", `${one.name} (${one.op}, ${one.provider})`)];
  const took = bar >= 0 ? `${timeText(data.bars.duration[bar])} in the run shown; ` : "";
  const calls = one.calls === 1 ? "" : `, ${significant(one.calls)} calls a run`;
  parts.push(field("Time", `${took}mean ${timeText(one.mean)}, p50 ${timeText(one.p50)}, p95 ${timeText(one.p95)}${calls}, ${percent(one.share)} of all nodes`));
  const rates = [[one.gflops, "GFLOP/s"], [one.gbs, "GB/s"]].filter(([value]) => value !== null);
  if (rates.length) parts.push(field("Rate", rates.map(([value, unit]) => `${significant(value)} ${unit}`).join(", ")));
  if (shapesText(one)) parts.push(field("Shapes", shapesText(one)));
  if (one.device !== null) parts.push(field("Device", `${timeText(one.device)} a run`));
  if (one.origins.some((name) => name !== one.name)) parts.push(field(`Stands for ${plural(one.origins.length, "node")}`, one.origins.join(", ")));
  if (data.graph_page) {
    const link = make("a", "show it in the graph", { href: `${data.graph_page}#node=${encodeURIComponent(one.name)}` });
    parts[0].append(" ", link);
  }
  details.replaceChildren(...parts);
};
const chooseBar = (bar, move = true) => {
  chosen = bar;
  const index = data.bars.node[bar];
  if (index >= 0) tell(index, bar);
  else details.replaceChildren(field("On the device", `${data.bars.label[bar]}, ${timeText(data.bars.duration[bar])}`));
  nodesTable.mark(index);
  return move ? showBar(bar) : drawTimeline();
};
const chooseNode = (index) => {
  const bar = data.bars.node.indexOf(index);
  if (bar >= 0) return chooseBar(bar);
  tell(index, -1);
  nodesTable.mark(index);
};
