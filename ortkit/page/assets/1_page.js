// What all pages share: the data, numbers as text, elements, the theme.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

const short = (text, most) => (text.length <= most ? text : `${text.slice(0, most / 2)}…${text.slice(-most / 2 + 1)}`);

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

const groupBy = (list, key) => {
  const groups = new Map();
  for (const one of list) {
    if (!groups.has(key(one))) groups.set(key(one), []);
    groups.get(key(one)).push(one);
  }
  return groups;
};
// An element with text; the text is never read as HTML.
const make = (tag, text = "", attributes = {}) => {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
};
// The same of SVG.
const svg = (tag, attributes = {}, text = "") => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return made;
};
const empty = (element, why) => {
  element.classList.add("empty");
  element.textContent = why;
};

// Not Math.max(...list): a list of this length does not fit a call.
const maxOf = (list) => list.reduce((most, value) => (value > most ? value : most), 0);

const setTheme = (name) => {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "Light" : "Dark";
};

// The theme that the system asks for, until the button says otherwise.
document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
byId("theme").textContent = document.documentElement.dataset.theme === "dark" ? "Light" : "Dark";
byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
