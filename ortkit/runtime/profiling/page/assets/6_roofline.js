// The roofline: arithmetic a byte against arithmetic a second, under the peaks of the machine.
const MOST_POINTS = 1500;
const AREA = { left: 62, right: 12, top: 8, bottom: 40 };

// How many of the first nodes take this part of the time of all: the rest only blurs the picture.
const countOfMost = (indexes, part) => {
  const wanted = part * indexes.reduce((sum, index) => sum + data.nodes.time[index], 0);
  let [sum, count] = [0, 0];
  while (count < indexes.length && sum < wanted) sum += data.nodes.time[indexes[count++]];
  return count;
};
// The least and the greatest exponent of ten around positive values.
const decades = (values) => {
  const logs = values.map(Math.log10);
  return [Math.floor(logs.reduce((a, b) => Math.min(a, b)) - 0.15), Math.ceil(logs.reduce((a, b) => Math.max(a, b)) + 0.15)];
};
const powerText = (exponent) =>
  Math.abs(exponent) <= 3 ? String(Number((10 ** exponent).toPrecision(1))) : `10${[...String(exponent)].map((one) => (one === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[one])).join("")}`;

const drawRoofline = () => {
  const holder = byId("roofline");
  const indexes = [...data.nodes.name.keys()]
    .filter((index) => data.nodes.gflops[index] > 0 && data.nodes.intensity[index] > 0)
    .sort((a, b) => data.nodes.time[b] - data.nodes.time[a]);
  if (!indexes.length) return empty(holder, "No node's arithmetic and traffic are both known.");
  const shown = indexes.slice(0, MOST_POINTS).slice(0, countOfMost(indexes, 0.995));
  const { peaks } = data;
  const left = indexes.length - shown.length;
  byId("roofline-what").textContent =
    plural(shown.length, "node") + (left ? `, ${countText(left)} of little time left out` : "") + (peaks ? "" : `; ${data.peaks_missing}`);
  const across = decades([...shown.map((index) => data.nodes.intensity[index]), ...(peaks?.bandwidths ?? []).map((one) => peaks.rates[0].value / one.value)]);
  const upward = decades([...shown.map((index) => data.nodes.gflops[index]), ...(peaks?.rates ?? []).map((one) => one.value)]);

  // One slope for each bandwidth, one level for each rate of arithmetic.
  const drawRoof = ({ xOf, yOf, right, bottom, label, picture }) => {
    if (!peaks) return;
    const best = { gflops: Math.max(...peaks.rates.map((one) => one.value)), gbs: Math.max(...peaks.bandwidths.map((one) => one.value)) };
    const angle = -Math.atan2((bottom - yOf(10 ** (upward[0] + 1))) , xOf(10 ** (across[0] + 1)) - xOf(10 ** across[0])) * 180 / Math.PI;
    for (const { name, value } of peaks.bandwidths) {
      const start = Math.max(10 ** across[0], 10 ** upward[0] / value);
      const [x, y] = [xOf(start), yOf(start * value)];
      picture.append(svg("path", { d: `M${x} ${y}L${xOf(best.gflops / value)} ${yOf(best.gflops)}`, class: "roof" }));
      label(x, y, `${name} ${significant(value)} GB/s`, "roof-name", { transform: `rotate(${angle.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)})`, dx: 10, dy: -5 });
    }
    let above = Infinity;
    for (const { name, value } of peaks.rates.toSorted((a, b) => a.value - b.value)) {
      const y = yOf(value);
      picture.append(svg("path", { d: `M${xOf(value / best.gbs)} ${y}H${right}`, class: "roof" }));
      above = Math.min(y - 5, above - 13); // names of close levels stand over each other
      label(right - 4, above, `${name} ${significant(value)} GFLOP/s`, "roof-name end");
    }
  };
  drawnIn(holder, (picture, width, height) => {
    const [bottom, right] = [height - AREA.bottom, width - AREA.right];
    const xOf = (value) => AREA.left + ((Math.log10(value) - across[0]) / (across[1] - across[0])) * (right - AREA.left);
    const yOf = (value) => bottom - ((Math.log10(value) - upward[0]) / (upward[1] - upward[0])) * (bottom - AREA.top);
    picture.replaceChildren();
    const label = (x, y, text, kind, more = {}) => picture.append(svg("text", { x: x.toFixed(1), y: y.toFixed(1), class: kind, ...more }, text));
    for (let at = across[0]; at <= across[1]; at++) {
      const x = xOf(10 ** at);
      picture.append(svg("path", { d: `M${x} ${AREA.top}V${bottom + 4}`, class: "grid" }));
      label(x, bottom + 15, powerText(at), "middle");
    }
    for (let at = upward[0]; at <= upward[1]; at++) {
      const y = yOf(10 ** at);
      picture.append(svg("path", { d: `M${AREA.left - 4} ${y}H${right}`, class: "grid" }));
      label(AREA.left - 8, y, powerText(at), "end");
    }
    label((AREA.left + right) / 2, height - 8, "FLOP per byte moved", "middle");
    const middle = (AREA.top + bottom) / 2;
    label(13, middle, "GFLOP/s", "middle", { transform: `rotate(-90 13 ${middle})` });
    drawRoof({ xOf, yOf, right, bottom, label, picture });
    for (const index of shown.toReversed())
      picture.append(svg("circle", {
        cx: xOf(data.nodes.intensity[index]).toFixed(1), cy: yOf(data.nodes.gflops[index]).toFixed(1), fill: colourOf(data.nodes.op[index]),
        r: (3.5 + 13 * Math.sqrt(Math.min(1, data.nodes.share[index]))).toFixed(1), "data-mark": index, class: "point",
      }));
  });
  tellOf(holder, (mark) => {
    if (mark === undefined) return null;
    const one = node(mark);
    return [short(one.name, 80), `${opName(one.op)}, ${timeText(one.time)} a run`,
      `${significant(one.gflops)} GFLOP/s at ${significant(one.intensity)} FLOP per byte, ${significant(one.gbs ?? 0)} GB/s`];
  });
  holder.addEventListener("click", (event) => {
    if (event.target.dataset.mark !== undefined) chooseNode(Number(event.target.dataset.mark));
  });
};
