// What all parts of the page share: the data, numbers as text, escaping, colours.
const data = JSON.parse(document.getElementById("data").textContent);
// A column of few different texts holds each once.
for (const [field, column] of Object.entries(data.nodes))
  if (!Array.isArray(column)) data.nodes[field] = column.index.map((at) => column.values[at]);
const byId = (id) => document.getElementById(id);

const PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f", "#ff9da7"];
const OTHER = "#8a8f98";

// Plotly reads <b>, <a> and entities in any text it shows; names are text and nothing else.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most / 2)}…${text.slice(-most / 2 + 1)}`);

// A generated kernel's operator without the key of what it computes.
const opName = (op) => op.replace(/^ortkit\.fused::(.+)_[0-9a-f]{12}$/, "$1");

const significant = (value) =>
  value === 0 ? "0" : Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(3)));
const scaled = (value, units, step) => {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) [value, unit] = [value / step, unit + 1];
  return `${significant(value)} ${units[unit]}`;
};
const timeText = (us) => scaled(us, ["µs", "ms", "s"], 1000);
const bytesText = (count) => scaled(count, ["B", "kB", "MB", "GB", "TB"], 1000);
const percent = (share) => `${significant(100 * share)} %`;
const countText = (count) => count.toLocaleString("en");
const plural = (count, what) => `${countText(count)} ${what}${count === 1 ? "" : "s"}`;

const node = (index) => Object.fromEntries(Object.entries(data.nodes).map(([field, column]) => [field, column[index]]));
const groupBy = (list, key) => {
  const groups = new Map();
  for (const one of list) {
    if (!groups.has(key(one))) groups.set(key(one), []);
    groups.get(key(one)).push(one);
  }
  return groups;
};
const ops = [...new Set(data.ops.op)]; // most time first; one may run on two providers
const colours = new Map(ops.slice(0, PALETTE.length).map((op, index) => [op, PALETTE[index]]));
const colourOf = (op) => colours.get(op) ?? OTHER;

// An element with text; the text is never read as HTML.
const make = (tag, text = "", attributes = {}) => {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
const empty = (element, why) => {
  element.classList.add("empty");
  element.textContent = why;
};

// Not Math.max(...list): a list of this length does not fit a call.
const maxOf = (list) => list.reduce((most, value) => (value > most ? value : most), 0);

const drawings = []; // functions that draw again in the colours of the theme
const themed = (draw) => {
  drawings.push(draw);
  draw();
};
const theme = () => {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(name).trim();
  return { card: read("--card"), ink: read("--ink"), soft: read("--soft"), edge: read("--edge"), accent: read("--accent") };
};
const FAMILY = getComputedStyle(document.body).fontFamily;
// Black or white, whichever can be read on a colour of the palette (relative luminance, WCAG 2.2).
const inkOn = (hex) => {
  const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(hex.slice(at, at + 2), 16) / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.18 ? "#111111" : "#ffffff";
};
const baseLayout = (colour) => ({
  paper_bgcolor: colour.card,
  plot_bgcolor: colour.card,
  font: { color: colour.ink, size: 12, family: FAMILY },
  hoverlabel: { bgcolor: colour.card, bordercolor: colour.soft, font: { color: colour.ink, size: 12, family: FAMILY }, align: "left", namelength: -1 },
  showlegend: false,
});
const baseConfig = { displaylogo: false, responsive: true, displayModeBar: false, doubleClick: false };

const setTheme = (name) => {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
  for (const draw of drawings) draw();
};
