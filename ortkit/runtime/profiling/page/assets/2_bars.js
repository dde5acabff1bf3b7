// Which bars to draw: what is narrower than a pixel or so is drawn together with its neighbours.
const NARROW = 1.5; // pixels
const MOST_BARS = 2500;

// Rows of the timeline: one per lane and depth of nesting, bars of each sorted by start.
const rowsOfBars = () => {
  const rows = new Map();
  const { start, lane, depth } = data.bars;
  for (let index = 0; index < start.length; index++) {
    const key = lane[index] * 64 + depth[index];
    if (!rows.has(key)) rows.set(key, { lane: lane[index], depth: depth[index], bars: [] });
    rows.get(key).bars.push(index);
  }
  const sorted = [...rows.values()].sort((a, b) => a.lane - b.lane || a.depth - b.depth);
  for (const row of sorted) row.bars.sort((a, b) => start[a] - start[b]);
  return sorted;
};

// Index of the first bar of a row that may end after `from`; bars of a row do not overlap.
const firstAfter = (bars, from) => {
  let [low, high] = [0, bars.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (data.bars.start[bars[middle]] + data.bars.duration[bars[middle]] < from) low = middle + 1;
    else high = middle;
  }
  return low;
};

// Bars of one row between two times: {start, end, members: [indices], busy}, `per` microseconds a pixel.
const visibleBars = (row, from, to, per) => {
  const found = [];
  let group = null;
  const close = () => {
    if (group) found.push(group);
    group = null;
  };
  for (let at = firstAfter(row.bars, from); at < row.bars.length; at++) {
    const index = row.bars[at];
    const [start, taken] = [data.bars.start[index], data.bars.duration[index]];
    if (start > to) break;
    const narrow = taken < NARROW * per;
    if (!narrow || (group && start - group.end > NARROW * per)) close();
    if (!narrow) {
      found.push({ start, end: start + taken, members: [index], busy: taken });
      continue;
    }
    group ??= { start, end: start, members: [], busy: 0 };
    group.members.push(index);
    group.end = Math.max(group.end, start + taken);
    group.busy += taken;
    if (group.end - group.start > 3 * NARROW * per) close();
  }
  close();
  return found;
};

// The operator that takes most of the time of several bars.
const mainOp = (members) => {
  const taken = new Map();
  for (const bar of members) taken.set(opOf(bar), (taken.get(opOf(bar)) ?? 0) + data.bars.duration[bar]);
  return [...taken].reduce((most, one) => (one[1] > most[1] ? one : most))[0];
};
const opOf = (bar) => data.nodes.op[data.bars.node[bar]] ?? data.bars.label[bar];

// All rows, drawn ever coarser until there are few enough for a page to stay quick.
const barsToDraw = (rows, from, to, pixels) => {
  for (let per = (to - from) / pixels; ; per *= 2) {
    const drawn = rows.map((row) => visibleBars(row, from, to, per));
    const count = drawn.reduce((sum, bars) => sum + bars.length, 0);
    if (count <= MOST_BARS || per > to - from) return drawn;
  }
};
