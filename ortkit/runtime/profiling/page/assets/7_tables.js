// The tables of operators, kernels and nodes.
const microseconds = (value) => value.toLocaleString("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const rate = (value) => value.toLocaleString("en", { maximumSignificantDigits: 3, minimumSignificantDigits: 3 });
const share = (value) => `${(100 * value).toFixed(2)} %`;
const TIMES = [
  { title: "Calls", field: "calls", number: true, text: significant, help: "In one run" },
  { title: "µs a run", field: "time", number: true, text: microseconds, first: true, help: "Own time, mean over the runs" },
  { title: "Device µs", field: "device", number: true, text: microseconds, optional: true, help: "On the device, in one run" },
  { title: "Share", field: "share", number: true, text: share, help: "Of the time of all nodes" },
  { title: "Mean µs", field: "mean", number: true, text: microseconds, help: "Of one call" },
  { title: "p50 µs", field: "p50", number: true, text: microseconds, help: "Of one call" },
  { title: "p95 µs", field: "p95", number: true, text: microseconds, help: "Of one call" },
  { title: "GFLOP/s", field: "gflops", number: true, text: rate },
  { title: "GB/s", field: "gbs", number: true, text: rate },
];
const startTables = () => {
  makeTable({
    table: byId("ops"), filter: byId("ops-filter"), what: byId("ops-what"), source: data.ops, noun: "operator",
    columns: [{ title: "Operator", field: "op" }, { title: "Provider", field: "provider" },
      { title: "Nodes", field: "nodes", number: true, text: countText }, ...TIMES],
  });
  if (data.kernels.name.length) {
    byId("kernels-section").hidden = false;
    makeTable({
      table: byId("kernels"), filter: byId("kernels-filter"), what: byId("kernels-what"), more: byId("kernels-more"),
      source: data.kernels, noun: "row",
      columns: [{ title: "Kernel", field: "name" }, { title: "Kind", field: "kind" },
        { title: "Calls", field: "calls", number: true, text: significant, help: "In one run" },
        { title: "µs a run", field: "time", number: true, text: microseconds, first: true },
        { title: "Share", field: "share", number: true, text: share, help: "Of all that the device did" },
        { title: "Bytes", field: "bytes", number: true, text: bytesText, help: "Copied or filled in one run" }],
    });
  }
  return makeTable({
    table: byId("nodes"), filter: byId("nodes-filter"), what: byId("nodes-what"), more: byId("nodes-more"), source: data.nodes,
    noun: "node", onChoose: chooseNode,
    columns: [{ title: "Node", field: "name" }, { title: "Operator", field: "op" }, ...TIMES,
      { title: "Bytes moved", field: "bytes", number: true, text: bytesText, help: "In one call" },
      { title: "Inputs", field: "inputs" }, { title: "Outputs", field: "outputs" },
      { title: "Stands for", field: "origins", text: (names) => names.join(", ") }, { title: "Provider", field: "provider" }],
  });
};
