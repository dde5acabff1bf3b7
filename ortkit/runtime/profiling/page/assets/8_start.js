// Everything is drawn once.
const legend = (name, colour) => {
  const item = make("li", name);
  item.prepend(make("i"));
  item.firstChild.style.background = colour;
  byId("legend").append(item);
};
for (const [op, colour] of colours) legend(short(opName(op), 40), colour);
if (ops.length > colours.size) legend("other", OTHER);
byId("legend").append(make("li", "pale: several nodes, in the colour of what most of their time goes to"));
if (data.run.number)
  byId("timeline-what").textContent = [
    `run ${data.run.number} of ${countText(data.run.of)}, the median: ${timeText(data.run.duration)}`,
    plural(data.bars.start.length, "bar"),
    hasMemory ? `below: memory in use, ${data.memory.of.replace("ExecutionProvider", "")} arena` : data.memory.missing,
  ].join("; ");
details.replaceChildren(make("p", "Choose a node: click on a bar, a tile, a point or a name in the table.", { class: "empty" }));
const nodesTable = startTables();
try {
  startTimeline();
  drawTreemap();
  drawRoofline();
} finally {
  document.documentElement.dataset.ready = "yes"; // what could be drawn is shown
}
