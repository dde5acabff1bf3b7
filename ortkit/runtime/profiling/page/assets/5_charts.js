// The treemap (provider, operator, node, by time) and the roofline.
const MOST_NODES_OF_AN_OP = 60;
const LEAST_SHARE_SHOWN = 0.0005;

const drawTreemap = () => {
  // Where a device works, the host's time is only what launching takes.
  const onDevice = data.nodes.device.some((value) => value > 0);
  const times = onDevice ? data.nodes.device.map((value) => value ?? 0) : data.nodes.time;
  const tree = { ids: [], labels: [], parents: [], values: [], text: [], hovertext: [], colors: [], customdata: [] };
  let left = 0;
  const add = (id, label, parent, value, colour, index = -1) => {
    tree.ids.push(id);
    tree.labels.push(plain(label.length <= 28 ? label : `…${label.slice(-27)}`)); // names differ at their ends
    tree.hovertext.push(`<b>${plain(short(label, 90))}</b><br>${timeText(value)}, ${percent(value / total)} of all nodes`);
    tree.parents.push(parent);
    tree.values.push(value);
    tree.text.push(`${timeText(value)}, ${percent(value / total)}`);
    tree.colors.push(colour);
    tree.customdata.push(index);
  };
  const indexes = [...data.nodes.name.keys()].sort((a, b) => times[b] - times[a]);
  const total = times.reduce((sum, value) => sum + value, 0);
  if (!(total > 0)) return empty(byId("treemap"), "No time was measured in nodes.");
  const providers = groupBy(indexes, (index) => data.nodes.provider[index]);
  const sum = (list) => list.reduce((all, index) => all + times[index], 0);
  add("run", "all nodes", "", total, null);
  for (const [provider, of] of providers) {
    add(provider, provider.replace("ExecutionProvider", ""), "run", sum(of), null);
    for (const [op, nodes] of groupBy(of, (index) => data.nodes.op[index])) {
      const id = `${provider}\n${op}`;
      add(id, opName(op), provider, sum(nodes), colourOf(op));
      if (nodes.length === 1) {
        tree.customdata[tree.customdata.length - 1] = nodes[0];
        continue;
      }
      const shown = nodes.slice(0, MOST_NODES_OF_AN_OP).filter((index) => times[index] >= LEAST_SHARE_SHOWN * total);
      const rest = nodes.slice(shown.length);
      for (const index of shown) add(`${id}\n${index}`, data.nodes.name[index], id, times[index], colourOf(op), index);
      left += rest.length;
      if (rest.length) add(`${id}\nrest`, plural(rest.length, "other node"), id, sum(rest), colourOf(op));
    }
  }
  byId("treemap-what").textContent =
    (onDevice ? "time on the device" : "own time") + " a run" + (left ? `; ${plural(left, "small node")} joined as “others”` : "");
  if (!hasCharts) return empty(byId("treemap"), NO_CHARTS);
  themed(() => {
    const colour = theme();
    const trace = {
      type: "treemap", ...tree, branchvalues: "total", sort: true, texttemplate: "%{label}<br>%{text}", tiling: { pad: 1 },
      hovertemplate: "%{hovertext}<extra></extra>", maxdepth: 4, pathbar: { thickness: 20 },
      marker: { colors: tree.colors.map((one) => one ?? colour.edge), line: { color: colour.card, width: 1 }, pad: { t: 18, l: 2, r: 2, b: 2 } },
      textfont: { size: 12, color: tree.colors.map((one) => (one ? inkOn(one) : colour.ink)) },
    };
    const layout = { ...baseLayout(colour), margin: { l: 0, r: 0, t: 4, b: 0 }, uniformtext: { minsize: 10, mode: "hide" } };
    Plotly.react("treemap", [trace], layout, baseConfig);
  });
  byId("treemap").on("plotly_treemapclick", ({ points }) => {
    const index = points[0].customdata;
    if (index >= 0) chooseNode(index);
  });
};

const MOST_POINTS = 1500;
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
// Peaks as lines: one slope for each bandwidth, one level for each rate of arithmetic.
const roofLines = (peaks, [low, high], colour) => {
  if (!peaks) return [];
  const best = { gflops: Math.max(...peaks.rates.map((one) => one.value)), gbs: Math.max(...peaks.bandwidths.map((one) => one.value)) };
  const line = { type: "scatter", mode: "lines+text", hoverinfo: "skip", cliponaxis: false, textfont: { size: 11, color: colour.soft },
    line: { color: colour.soft, width: 1.4, dash: "dot" } };
  const name = (one, unit) => plain(`${one.name} ${significant(one.value)} ${unit}`);
  const inward = 10 ** (0.02 * (high - low)); // names stand off the edges
  const slopes = peaks.bandwidths.map((one) => {
    const [start, ridge] = [10 ** low, best.gflops / one.value];
    return { ...line, x: [start, start * inward, ridge], y: [start * one.value, start * inward * one.value, best.gflops],
      text: ["", name(one, "GB/s"), ""], textposition: "top right" };
  });
  const levels = peaks.rates.map((one) => ({ ...line, x: [one.value / best.gbs, 10 ** high / inward, 10 ** high],
    y: [one.value, one.value, one.value], text: ["", name(one, "GFLOP/s"), ""], textposition: "top left" }));
  return [...slopes, ...levels];
};

const drawRoofline = () => {
  const indexes = [...data.nodes.name.keys()]
    .filter((index) => data.nodes.gflops[index] > 0 && data.nodes.intensity[index] > 0)
    .sort((a, b) => data.nodes.time[b] - data.nodes.time[a]);
  if (!indexes.length) return empty(byId("roofline"), "No node's arithmetic and traffic are both known.");
  const shown = indexes.slice(0, MOST_POINTS).slice(0, countOfMost(indexes, 0.995));
  const x = shown.map((index) => data.nodes.intensity[index]);
  const y = shown.map((index) => data.nodes.gflops[index]);
  const peaks = data.peaks;
  const left = indexes.length - shown.length;
  byId("roofline-what").textContent =
    plural(shown.length, "node") + (left ? `, ${countText(left)} of little time left out` : "") + (peaks ? "" : `; ${data.peaks_missing}`);
  const across = decades([...x, ...(peaks ? peaks.bandwidths.map((one) => peaks.rates[0].value / one.value) : [])]);
  const upward = decades([...y, ...(peaks ? peaks.rates.map((one) => one.value) : [])]);
  if (!hasCharts) return empty(byId("roofline"), NO_CHARTS);
  themed(() => {
    const colour = theme();
    const points = {
      type: "scatter", mode: "markers", x, y, customdata: shown, hovertemplate: "%{hovertext}<extra></extra>",
      hovertext: shown.map((index) => {
        const one = node(index);
        return `<b>${plain(short(one.name, 80))}</b><br>${plain(one.op)}, ${timeText(one.time)} a run<br>` +
          `${significant(one.gflops)} GFLOP/s at ${significant(one.intensity)} FLOP per byte, ${significant(one.gbs ?? 0)} GB/s`;
      }),
      marker: {
        color: shown.map((index) => colourOf(data.nodes.op[index])), opacity: 0.85, line: { color: colour.card, width: 0.6 },
        size: shown.map((index) => 7 + 26 * Math.sqrt(Math.min(1, data.nodes.share[index]))),
      },
    };
    const grid = { type: "log", gridcolor: colour.edge, zeroline: false, exponentformat: "power", dtick: 1, ticks: "outside", ticklen: 4, tickcolor: colour.edge };
    const layout = {
      ...baseLayout(colour), margin: { l: 70, r: 12, t: 8, b: 44 }, hovermode: "closest", dragmode: "zoom",
      xaxis: { ...grid, range: across, title: { text: "FLOP per byte moved", standoff: 8 } },
      yaxis: { ...grid, range: upward, title: { text: "GFLOP/s", standoff: 8 } },
    };
    Plotly.react("roofline", [...roofLines(peaks, across, colour), points], layout, { ...baseConfig, doubleClick: "reset" });
  });
  byId("roofline").on("plotly_click", ({ points }) => {
    if (points[0].customdata >= 0) chooseNode(points[0].customdata);
  });
};
