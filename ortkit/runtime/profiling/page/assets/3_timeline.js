// The timeline: threads and devices as lanes, nodes as bars, memory in use below, one time axis.
const timeline = byId("timeline");
const rows = rowsOfBars();
const whole = [0, data.run.duration];
let view = [...whole];
let chosen = -1; // index of a bar
let drawn = []; // bars on the screen
let drawTimeline = () => {};

const MARGIN = { left: 118, right: 16 };
let pixels = 100; // of the width of what is in view
const perPixel = () => (view[1] - view[0]) / pixels;
const placeOf = (time) => MARGIN.left + (time - view[0]) / perPixel();

const shapesText = (one) => [one.inputs, one.outputs].filter(Boolean).join(" → ");
const describe = (bar) => {
  const [start, taken, one] = [data.bars.start[bar], data.bars.duration[bar], node(data.bars.node[bar])];
  const when = `${timeText(taken)} from ${timeText(start)}`;
  if (!one.name) return [short(data.bars.label[bar], 90), when];
  return [
    short(one.name, 90),
    `${opName(one.op)} on ${one.provider}`,
    `${when} (mean ${timeText(one.mean)}, ${percent(one.share)} of all nodes)`,
    data.bars.label[bar] && short(data.bars.label[bar], 90),
    short(shapesText(one), 110),
    one.origins.some((name) => name !== one.name) ? `stands for ${short(one.origins.join(", "), 110)}` : "",
  ];
};
const describeGroup = (bar) => [
  `${plural(bar.members.length, "node")}, mostly ${opName(mainOp(bar.members))}`,
  `${timeText(bar.end - bar.start)} from ${timeText(bar.start)}, ${timeText(bar.busy)} of it in nodes`,
  "zoom in to tell them apart",
];

const rowHeight = Math.max(15, Math.min(46, 420 / Math.max(1, rows.length)));
const hasMemory = data.memory.time.length > 0;
const HEIGHT = { bars: Math.max(60, rows.length * rowHeight), gap: hasMemory ? 18 : 0, memory: hasMemory ? 84 : 0, axis: 30 };
const axisAt = HEIGHT.bars + HEIGHT.gap + HEIGHT.memory;
document.documentElement.style.setProperty("--timeline-height", `${axisAt + HEIGHT.axis}px`);

// Bars of one row as rectangles, with the operator's name where it fits.
const barsOf = (bars, row, group) => {
  for (const bar of bars) {
    const alone = bar.members.length === 1;
    const op = alone ? opOf(bar.members[0]) : mainOp(bar.members);
    const [from, to] = [Math.max(MARGIN.left - 2, placeOf(bar.start)), Math.min(MARGIN.left + pixels + 2, placeOf(bar.end))];
    const [top, height] = [(row + 0.07) * rowHeight, 0.86 * rowHeight];
    const classes = [alone ? "" : "several", bar.members.includes(chosen) ? "chosen" : "", to - from > 5 ? "wide" : ""];
    group.append(svg("rect", {
      x: from.toFixed(2), y: top.toFixed(1), width: Math.max(0.6, to - from).toFixed(2), height: height.toFixed(1),
      fill: colourOf(op), class: classes.filter(Boolean).join(" "), "data-mark": drawn.push(bar) - 1,
    }));
    if (alone && to - from > 7 * opName(op).length + 8)
      group.append(svg("text", { x: ((from + to) / 2).toFixed(1), y: (top + height / 2).toFixed(1), fill: inkOn(colourOf(op)), class: "inside" }, opName(op)));
  }
};

// Bytes in use as steps, at most two points a pixel: the least and the most there.
const memoryPath = (most) => {
  const { time, bytes } = data.memory;
  const heightOf = (count) => (axisAt - (HEIGHT.memory * count) / (1.08 * most)).toFixed(1);
  let path = "";
  let [pixel, low, high, last] = [null, 0, 0, bytes[0]];
  const close = () => {
    if (pixel !== null) path += `H${pixel}V${heightOf(low)}V${heightOf(high)}V${heightOf(last)}`;
  };
  for (let at = 0; at < time.length; at++) {
    const place = Math.round(Math.min(MARGIN.left + pixels, Math.max(MARGIN.left, placeOf(time[at]))));
    if (place !== pixel) {
      close();
      [pixel, low, high] = [place, bytes[at], bytes[at]];
    }
    [low, high, last] = [Math.min(low, bytes[at]), Math.max(high, bytes[at]), bytes[at]];
  }
  close();
  return `M${MARGIN.left} ${heightOf(bytes[0])}${path}H${(MARGIN.left + Math.min(pixels, (whole[1] - view[0]) / perPixel())).toFixed(1)}`;
};

// Round times on the axis, in the unit that fits what is in view: [[time, text]].
const timeTicks = ([from, to]) => {
  const rough = (to - from) / Math.max(2, pixels / 120);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const [unit, per] = to >= 1e6 ? ["s", 1e6] : to >= 1e3 ? ["ms", 1e3] : ["µs", 1];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / per) - 1e-9));
  const text = (at) => (at / per).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const ticks = [];
  for (let at = Math.ceil(from / step); at * step <= to + 1e-9 * step; at++) ticks.push([at * step, `${text(at * step)} ${unit}`]);
  return ticks;
};

const drawAxes = (picture) => {
  for (const [time, text] of timeTicks(view)) {
    const x = placeOf(time).toFixed(1);
    picture.append(svg("path", { d: `M${x} 0V${axisAt + 5}`, class: "grid" }), svg("text", { x, y: axisAt + 18, class: "middle" }, text));
  }
  rows.forEach((row, at) => {
    const name = row.depth ? `${"· ".repeat(row.depth)}inside` : data.lanes[row.lane];
    picture.append(svg("text", { x: MARGIN.left - 8, y: (at + 0.5) * rowHeight, class: "end" }, short(name, 18)));
  });
};
const drawMemory = (picture) => {
  const most = Math.max(1, maxOf(data.memory.bytes));
  for (const count of [0, most / 2, most])
    picture.append(svg("text", { x: MARGIN.left - 8, y: axisAt - (HEIGHT.memory * count) / (1.08 * most), class: "end" }, bytesText(count)));
  const line = memoryPath(most);
  const right = MARGIN.left + pixels;
  picture.append(svg("path", { d: `${line}V${axisAt}H${MARGIN.left}Z`, class: "fill" }), svg("path", { d: line, class: "line" }));
  picture.append(svg("rect", { x: MARGIN.left, y: axisAt - HEIGHT.memory, width: right - MARGIN.left, height: HEIGHT.memory, class: "area", "data-mark": "memory" }));
};

const setView = (from, to) => {
  const least = Math.max(whole[1] / 1e6, 0.01);
  const width = Math.min(Math.max(to - from, least), whole[1]);
  const start = Math.min(Math.max(from, 0), whole[1] - width);
  view = [start, start + width];
  drawTimeline();
};
const zoom = (factor, around = 0.5) => {
  const width = view[1] - view[0];
  const fixed = view[0] + around * width;
  setView(fixed - around * width * factor, fixed + (1 - around) * width * factor);
};
const move = (part) => setView(view[0] + part * (view[1] - view[0]), view[1] + part * (view[1] - view[0]));
const MOVES = {
  left: () => move(-0.2),
  right: () => move(0.2),
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
  setView(start + taken / 2 - width / 2, start + taken / 2 + width / 2);
};

// What is told where the mouse is over the memory: its last value by then.
const memoryLines = (x) => {
  const time = view[0] + (x - MARGIN.left) * perPixel();
  const at = Math.max(0, data.memory.time.findLastIndex((one) => one <= time));
  return [`${bytesText(data.memory.bytes[at])} in use`, `at ${timeText(data.memory.time[at])}`];
};

// Dragging zooms to what was dragged over; with shift it moves, and a click chooses.
const startDragging = () => {
  const xOf = (event) => event.clientX - timeline.getBoundingClientRect().left;
  const part = (x) => Math.min(1, Math.max(0, (x - MARGIN.left) / pixels));
  let drag = null;
  timeline.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { from: xOf(event), view: [...view], moves: event.shiftKey, mark: event.target.dataset.mark, far: false };
    timeline.setPointerCapture(event.pointerId);
  });
  timeline.addEventListener("pointermove", (event) => {
    lastX = xOf(event);
    if (!drag) return;
    drag.far ||= Math.abs(lastX - drag.from) > 4;
    if (!drag.far) return;
    if (drag.moves) {
      const by = (drag.from - lastX) * perPixel();
      return setView(drag.view[0] + by, drag.view[1] + by);
    }
    const [low, high] = [drag.from, lastX].map(part).sort((a, b) => a - b);
    selection.hidden = false;
    Object.assign(selection.style, { left: `${MARGIN.left + low * pixels}px`, width: `${(high - low) * pixels}px`, height: `${axisAt}px` });
  });
  timeline.addEventListener("pointerup", (event) => {
    const was = drag;
    drag = null;
    selection.hidden = true;
    if (!was) return;
    const bar = drawn[was.mark];
    if (!was.far) return bar?.members.length === 1 ? chooseBar(bar.members[0], false) : undefined;
    if (was.moves) return;
    const [low, high] = [was.from, xOf(event)].map(part).sort((a, b) => a - b).map((one) => view[0] + one * (view[1] - view[0]));
    setView(low, high);
  });
  timeline.addEventListener("pointercancel", () => {
    drag = null;
    selection.hidden = true;
  });
  timeline.addEventListener("dblclick", MOVES.all);
  timeline.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return; // the page scrolls
    event.preventDefault();
    if (event.ctrlKey) zoom(2 ** (Math.sign(event.deltaY) * 0.5), part(xOf(event)));
    else move(event.deltaX / pixels);
  }, { passive: false });
};
const selection = make("div", "", { class: "selection", hidden: "" });
let lastX = 0;

const startTimeline = () => {
  if (!data.bars.start.length) return empty(timeline, data.run.number ? "No node ran in this run." : data.memory.missing);
  drawTimeline = drawnIn(timeline, (picture, width) => {
    pixels = Math.max(100, width - MARGIN.left - MARGIN.right);
    drawn = [];
    const bars = svg("g", { class: "bars" });
    barsToDraw(rows, view[0], view[1], pixels).forEach((found, row) => barsOf(found, row, bars));
    // What reaches beyond the sides is cut off there.
    const clip = svg("clipPath", { id: "in-view" });
    clip.append(svg("rect", { x: MARGIN.left - 1, y: -4, width: pixels + 2, height: axisAt + 8 }));
    bars.setAttribute("clip-path", "url(#in-view)");
    picture.replaceChildren(clip);
    drawAxes(picture);
    picture.append(bars);
    if (hasMemory) drawMemory(picture);
    timeline.dataset.view = view.join(" ");
  });
  timeline.append(selection);
  startDragging();
  tellOf(timeline, (mark) => {
    if (mark === "memory") return memoryLines(lastX);
    const bar = drawn[mark];
    return bar && (bar.members.length === 1 ? describe(bar.members[0]) : describeGroup(bar));
  });
  timeline.addEventListener("keydown", (event) => {
    const wanted = event.ctrlKey || event.metaKey || event.altKey ? undefined : KEYS[event.key];
    if (!wanted) return;
    event.preventDefault();
    MOVES[wanted]();
  });
  for (const button of document.querySelectorAll("[data-move]")) button.addEventListener("click", MOVES[button.dataset.move]);
};
