// What the parts of this page share: nodes, escaping, colours.
// A column of few different texts holds each once.
for (const [field, column] of Object.entries(data.nodes))
  if (!Array.isArray(column)) data.nodes[field] = column.index.map((at) => column.values[at]);

const PALETTE = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#b07aa1", "#edc948", "#9c755f", "#ff9da7"];
const OTHER = "#8a8f98";

// Plotly reads <b>, <a> and entities in any text it shows; names are text and nothing else.
const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
// A generated kernel's operator without the key of what it computes.
const opName = (op) => op.replace(/^ortkit\.fused::(.+)_[0-9a-f]{12}$/, "$1");

const node = (index) => Object.fromEntries(Object.entries(data.nodes).map(([field, column]) => [field, column[index]]));
const ops = [...new Set(data.ops.op)]; // most time first; one may run on two providers
const colours = new Map(ops.slice(0, PALETTE.length).map((op, index) => [op, PALETTE[index]]));
const colourOf = (op) => colours.get(op) ?? OTHER;

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
// The charts are plotly's, whose script is in the page where it was there when the page was made.
const hasCharts = typeof Plotly !== "undefined";
const NO_CHARTS = "Drawn in pages that are made with plotly: pip install \"ortkit[report]\".";
