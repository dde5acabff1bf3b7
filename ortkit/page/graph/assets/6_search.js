// Search over both graphs: names, operators, values; and links to a node, `#node=NAME`.
const MOST_FOUND = 40;
const search = byId("search");
const foundList = byId("found");
const words = graphs.map(({ nodes, values }) => nodes.name.map((name, node) =>
  [name, nodes.op[node], ...nodes.outputs[node].map((value) => values.name[value])].join(" ").toLowerCase()));
const sides = isPair ? [1, 0] : [0];
let results = [];
let at = 0;

const find = (text) => {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const found = [];
  for (const side of sides)
    for (let node = 0; node < words[side].length && found.length < MOST_FOUND * 2; node++)
      if (wanted.every((word) => words[side][node].includes(word))) found.push({ side, node });
  const rank = ({ side, node }) => (graphs[side].nodes.title[node].toLowerCase().startsWith(wanted[0]) ? 0 : 1);
  return found.sort((a, b) => b.side - a.side || rank(a) - rank(b) || a.node - b.node).slice(0, MOST_FOUND);
};
const showFound = () => {
  foundList.hidden = !search.value.trim();
  foundList.replaceChildren(...results.map(({ side, node }, index) => {
    const item = make("li", `${graphs[side].nodes.title[node]} `, { class: index === at ? "at" : "" });
    item.append(make("small", `${isPair ? ["before", "after"][side] + " · " : ""}${graphs[side].nodes.name[node]}`));
    item.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      at = index;
      take();
    });
    return item;
  }));
  if (!results.length) foundList.append(make("li", "nothing is called that"));
  foundList.children[at]?.scrollIntoView({ block: "nearest" });
};
const take = () => {
  const one = results[at];
  if (!one) return;
  foundList.hidden = true;
  search.blur();
  choose(one.side, one.node, { moves: true });
  panes[one.side].svg.focus({ preventScroll: true });
};
search.addEventListener("input", () => {
  [results, at] = [find(search.value), 0];
  showFound();
});
search.addEventListener("focus", () => search.value.trim() && showFound());
search.addEventListener("blur", () => (foundList.hidden = true));
search.addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && results.length) {
    event.preventDefault();
    at = (at + step + results.length) % results.length;
    showFound();
  } else if (event.key === "Enter") take();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    search.blur();
    clear();
  } else if (event.key === "/" && !event.ctrlKey && document.activeElement !== search && !/^(INPUT|TEXTAREA)$/.test(document.activeElement?.tagName)) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

// A node by its name, or by that of a value that it makes; the rewritten graph comes first.
const named = (name) => {
  for (const side of sides) {
    const { nodes, values } = graphs[side];
    const node = nodes.name.indexOf(name);
    if (node >= 0) return { side, node };
    const maker = nodes.outputs.findIndex((list) => list.some((value) => values.name[value] === name));
    if (maker >= 0) return { side, node: maker };
  }
  return null;
};
const followLink = () => {
  const name = new URLSearchParams(location.hash.slice(1).replace(/\+/g, "%2B")).get("node");
  const one = name && named(name);
  if (one) choose(one.side, one.node, { moves: true });
};
