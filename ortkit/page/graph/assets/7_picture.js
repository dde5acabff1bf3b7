// A graph as it is open now, as one SVG file that needs no page: light or dark as the system asks.
const STYLED = /^\.(item|node|group|wire|tip)\b/;
const HUES = [...FAMILIES, "interface", "ink", "soft", "card", "page", "frame", "wire", "on-fused"].map((name) => `--${name}`);

const huesOf = (name) => {
  const shown = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = name;
  const style = getComputedStyle(document.documentElement);
  const text = HUES.map((hue) => `${hue}:${style.getPropertyValue(hue).trim()}`).join(";");
  document.documentElement.dataset.theme = shown;
  return text;
};
const pictureOf = (pane) => {
  const { placed } = pane;
  const [w, h] = [Math.ceil(placed.w + 24), Math.ceil(placed.h + 24)];
  const picture = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width: w, height: h, viewBox: `-12 -12 ${w} ${h}` });
  const rules = [...document.styleSheets[0].cssRules].map((rule) => rule.cssText).filter((text) => STYLED.test(text) && !/touch|lit|chosen/.test(text));
  picture.append(svg("style", {}, `svg{${huesOf("light")};font-family:system-ui,"Segoe UI","Liberation Sans",Arial,sans-serif}` +
    `@media (prefers-color-scheme:dark){svg{${huesOf("dark")}}}${rules.join("")}`));
  picture.append(...pane.fine([...placed.boxes.values()], placed.wires).filter((element) => !element.matches(".touch")));
  for (const element of picture.querySelectorAll("[data-item], [data-from]"))
    for (const name of ["data-item", "data-from", "data-to"]) element.removeAttribute(name);
  return new XMLSerializer().serializeToString(picture);
};
const savePicture = (pane) => {
  const link = make("a", "", { download: `${pane.graph.title}.svg`, href: `data:image/svg+xml,${encodeURIComponent(pictureOf(pane))}` });
  link.click();
};
