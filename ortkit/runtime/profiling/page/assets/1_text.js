// What the parts of this page share: nodes, escaping, colours.
// A column of few different texts holds each once.
for (const [field, column] of Object.entries(data.nodes))
  if (!Array.isArray(column)) data.nodes[field] = column.index.map((at) => column.values[at]);

const PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f", "#ff9da7"];
const OTHER = "#8a8f98";

// A generated kernel's operator without its domain.
const opName = (op) => op.replace(/^ortkit\.fused::/, "");

const node = (index) => Object.fromEntries(Object.entries(data.nodes).map(([field, column]) => [field, column[index]]));
const ops = [...new Set(data.ops.op)]; // most time first; one may run on two providers
const colours = new Map(ops.slice(0, PALETTE.length).map((op, index) => [op, PALETTE[index]]));
const colourOf = (op) => colours.get(op) ?? OTHER;

// Black or white, whichever can be read on a colour of the palette (relative luminance, WCAG 2.2).
const inkOn = (hex) => {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#111111" : "#ffffff";
};
const CHARACTER = 6.8; // pixels that one takes in a chart, nearly
// A name cut in its middle, so that names which differ at their ends stay apart; "" where there is no room.
const fitted = (text, pixels) => {
  const most = Math.floor(pixels / CHARACTER);
  return text.length <= most ? text : most < 6 ? "" : `${text.slice(0, Math.ceil(most / 3))}…${text.slice(text.length + 1 - Math.floor((2 * most) / 3))}`;
};

// What is told of the mark under the mouse: the first line stands out.
const tip = make("div", "", { id: "tip", hidden: "" });
document.body.append(tip);
const tellOf = (chart, linesOf) => {
  chart.addEventListener("pointermove", (event) => {
    const lines = event.buttons ? null : linesOf(event.target.dataset.mark);
    tip.hidden = !lines;
    if (!lines) return;
    tip.replaceChildren(...lines.filter(Boolean).map((line, at) => make(at ? "div" : "b", line)));
    const [width, height] = [tip.offsetWidth, tip.offsetHeight];
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${event.clientY + 18 + height < innerHeight ? event.clientY + 18 : event.clientY - height - 10}px`;
  });
  chart.addEventListener("pointerleave", () => (tip.hidden = true));
};
// An SVG as large as what holds it, drawn again when that changes its size.
const drawnIn = (holder, draw) => {
  const picture = svg("svg");
  holder.replaceChildren(picture);
  const again = () => draw(picture, holder.clientWidth, holder.clientHeight);
  new ResizeObserver(again).observe(holder);
  again();
  return again;
};
