// The timeline: threads and devices as lanes, nodes as bars, memory in use below, one time axis.
const timeline = byId("timeline");
const rows = rowsOfBars();
const whole = [0, data.run.duration];
let view = [...whole];
let chosen = -1; // index of a bar

const MARGIN = { left: 118, right: 16 };
const pixelsOf = () => Math.max(100, timeline.clientWidth - MARGIN.left - MARGIN.right);

const shapesText = (one) => [one.inputs, one.outputs].filter(Boolean).join(" → ");
const describe = (bar) => {
  const [start, taken, one] = [data.bars.start[bar], data.bars.duration[bar], node(data.bars.node[bar])];
  const when = `${timeText(taken)} from ${timeText(start)}`;
  if (!one.name) return `<b>${plain(short(data.bars.label[bar], 90))}</b><br>${when}`;
  return [
    `<b>${plain(short(one.name, 90))}</b>`,
    `${plain(one.op)} on ${plain(one.provider)}`,
    `${when} (mean ${timeText(one.mean)}, ${percent(one.share)} of all nodes)`,
    data.bars.label[bar] ? plain(short(data.bars.label[bar], 90)) : "",
    shapesText(one) && plain(short(shapesText(one), 110)),
    one.origins.length ? `stands for ${plain(short(one.origins.join(", "), 110))}` : "",
  ].filter(Boolean).join("<br>");
};
const describeGroup = (bar, op) =>
  `<b>${plural(bar.members.length, "node")}</b>, mostly ${plain(op)}<br>` +
  `${timeText(bar.end - bar.start)} from ${timeText(bar.start)}, ${timeText(bar.busy)} of it in nodes<br>zoom in to tell them apart`;

const barTrace = (colour) => {
  const drawn = barsToDraw(rows, view[0], view[1], pixelsOf());
  const trace = {
    type: "bar", orientation: "h", base: [], x: [], y: [], width: 0.86, customdata: [], hovertext: [],
    hovertemplate: "%{hovertext}<extra></extra>", text: [], textposition: "inside", insidetextanchor: "middle",
    textangle: 0, insidetextfont: { size: 11, color: [] }, constraintext: "none", cliponaxis: true,
    marker: { color: [], opacity: [], line: { color: [], width: [] } },
  };
  const per = (view[1] - view[0]) / pixelsOf();
  drawn.forEach((bars, row) => {
    for (const bar of bars) {
      const alone = bar.members.length === 1;
      const first = bar.members[0];
      const op = alone ? opOf(first) : mainOp(bar.members);
      const marked = bar.members.includes(chosen);
      const wide = (bar.end - bar.start) / per;
      const shown = (Math.min(bar.end, view[1]) - Math.max(bar.start, view[0])) / per;
      trace.base.push(bar.start);
      trace.x.push(bar.end - bar.start);
      trace.y.push(row);
      trace.customdata.push(alone ? first : -1);
      trace.hovertext.push(alone ? describe(first) : describeGroup(bar, op));
      trace.text.push(alone && Math.min(wide, shown) > 7 * opName(op).length + 8 ? plain(opName(op)) : "");
      trace.insidetextfont.color.push(inkOn(colourOf(op)));
      trace.marker.color.push(colourOf(op));
      trace.marker.opacity.push(alone ? 1 : 0.55);
      trace.marker.line.color.push(marked ? colour.ink : colour.card);
      trace.marker.line.width.push(marked ? 2.5 : wide > 5 ? 0.6 : 0);
    }
  });
  return trace;
};
const memoryTrace = (colour) => ({
  type: "scatter", mode: "lines", line: { shape: "hv", width: 1.3, color: colour.accent }, fill: "tozeroy",
  x: data.memory.time, y: data.memory.bytes, yaxis: "y2", hoverinfo: "text",
  text: data.memory.bytes.map((count, index) => `${bytesText(count)} in use at ${timeText(data.memory.time[index])}`),
});
const byteTicks = (most) => {
  const ticks = [0, most / 2, most];
  return { tickvals: ticks, ticktext: ticks.map(bytesText) };
};

// Ticks of the time axis at round times, in the unit that fits what is in view.
const timeTicks = ([from, to]) => {
  const rough = (to - from) / Math.max(2, pixelsOf() / 120);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const [unit, per] = to >= 1e6 ? ["s", 1e6] : to >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / per) - 1e-9));
  const ticks = [];
  for (let at = Math.ceil(from / step) * step; at <= to + 1e-9 * step; at += step) ticks.push(at);
  const text = (at) => (at / per).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return { tickvals: ticks, ticktext: ticks.map((at) => `${text(at)} ${unit}`) };
};

const rowHeight = Math.max(15, Math.min(46, 420 / Math.max(1, rows.length)));
const hasMemory = data.memory.time.length > 0;
const heights = { bars: Math.max(60, rows.length * rowHeight), memory: hasMemory ? 84 : 0, axis: 44 };
const inner = heights.bars + heights.memory + (hasMemory ? 18 : 0);
document.documentElement.style.setProperty("--timeline-height", `${inner + heights.axis}px`);

const timelineLayout = (colour) => ({
  ...baseLayout(colour),
  margin: { l: MARGIN.left, r: MARGIN.right, t: 4, b: heights.axis - 4 },
  dragmode: "zoom", hovermode: "closest", bargap: 0, barmode: "overlay",
  xaxis: {
    range: [...view], minallowed: whole[0], maxallowed: whole[1], gridcolor: colour.edge, zeroline: false,
    ticks: "outside", ticklen: 5, tickcolor: colour.edge, anchor: hasMemory ? "y2" : "y", ...timeTicks(view),
  },
  yaxis: {
    domain: [1 - heights.bars / inner, 1], range: [rows.length - 0.5, -0.5], fixedrange: true, showgrid: false, zeroline: false,
    tickvals: rows.map((_, index) => index), ticks: "",
    ticktext: rows.map((row) => plain(short(row.depth ? `${"· ".repeat(row.depth)}inside` : data.lanes[row.lane], 18))),
  },
  ...(hasMemory && {
    yaxis2: {
      domain: [0, heights.memory / inner], range: [0, 1.08 * Math.max(1, maxOf(data.memory.bytes))],
      fixedrange: true, gridcolor: colour.edge, zeroline: false, ...byteTicks(Math.max(1, maxOf(data.memory.bytes))),
    },
  }),
});

const drawTimeline = () => {
  if (!hasCharts) return;
  const colour = theme();
  const traces = hasMemory ? [barTrace(colour), memoryTrace(colour)] : [barTrace(colour)];
  return Plotly.react(timeline, traces, timelineLayout(colour), { ...baseConfig, doubleClick: "reset" });
};
const setView = (from, to) => {
  const least = Math.max(whole[1] / 1e6, 0.01);
  const width = Math.min(Math.max(to - from, least), whole[1]);
  const start = Math.min(Math.max(from, 0), whole[1] - width);
  view = [start, start + width];
  return drawTimeline();
};
const zoom = (factor, around = 0.5) => {
  const width = view[1] - view[0];
  const fixed = view[0] + around * width;
  return setView(fixed - around * width * factor, fixed + (1 - around) * width * factor);
};
const MOVES = {
  left: () => setView(view[0] - 0.2 * (view[1] - view[0]), view[1] - 0.2 * (view[1] - view[0])),
  right: () => setView(view[0] + 0.2 * (view[1] - view[0]), view[1] + 0.2 * (view[1] - view[0])),
  in: () => zoom(0.5),
  out: () => zoom(2),
  all: () => setView(...whole),
  next: () => step(1),
  previous: () => step(-1),
};
const KEYS = { ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "all", n: "next", p: "previous" };

// The bars in the order in which they start, for the keys that step through them.
const inOrder = [...data.bars.start.keys()].sort((a, b) => data.bars.start[a] - data.bars.start[b]);
const step = (by) => {
  if (!inOrder.length) return;
  const at = inOrder.indexOf(chosen);
  chooseBar(inOrder[at < 0 ? (by > 0 ? 0 : inOrder.length - 1) : (at + by + inOrder.length) % inOrder.length]);
};
const showBar = (bar) => {
  const [start, taken] = [data.bars.start[bar], data.bars.duration[bar]];
  const width = Math.min(view[1] - view[0], Math.max(4 * taken, whole[1] / 1e5));
  return setView(start + taken / 2 - width / 2, start + taken / 2 + width / 2);
};

const startTimeline = () => {
  if (!data.bars.start.length) return empty(timeline, data.run.number ? "No node ran in this run." : data.memory.missing);
  if (!hasCharts) return empty(timeline, NO_CHARTS);
  themed(drawTimeline);
  timeline.on("plotly_relayout", (change) => {
    const range = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (range[0] !== undefined) setView(range[0], range[1]);
  });
  timeline.on("plotly_doubleclick", () => setView(...whole));
  timeline.on("plotly_click", ({ points }) => {
    const bar = points[0].customdata;
    if (bar >= 0) chooseBar(bar, false);
  });
  timeline.addEventListener("keydown", (event) => {
    const move = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
    if (!move) return;
    event.preventDefault();
    MOVES[move]();
  });
  timeline.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // without it the page scrolls
    event.preventDefault();
    const left = timeline.getBoundingClientRect().left + MARGIN.left;
    const around = Math.min(1, Math.max(0, (event.clientX - left) / pixelsOf()));
    zoom(2 ** (Math.sign(event.deltaY) * 0.5), around);
  }, { passive: false, capture: true });
  for (const button of document.querySelectorAll("[data-move]")) button.addEventListener("click", MOVES[button.dataset.move]);
  new ResizeObserver(() => drawTimeline()).observe(timeline);
};
