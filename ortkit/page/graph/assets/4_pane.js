// One graph on the screen: drawn as far as it is in view, moved and zoomed.
const MOST_DRAWN = 1400; // boxes and wires; beyond that without texts, as a few paths
const LEAST_READABLE = 0.28;
const SCALES = [0.001, 3];
const rectPath = ({ x, y, w, h }) => `M${x.toFixed(0)} ${y.toFixed(0)}h${w.toFixed(0)}v${h.toFixed(0)}h${(-w).toFixed(0)}z`;

class Pane {
  constructor(side, holder) {
    Object.assign(this, { side, graph: graphs[side], view: { x: 0, y: 0, k: 1 }, lit: new Set(), chosen: null, drawn: null });
    this.open = openAtFirst(this.graph, isPair && !side ? 36 : 48);
    this.element = make("div", "", { class: "pane", id: `pane-${side}` });
    const bar = make("div", "", { class: "line" });
    const { graph } = this;
    bar.append(make("h2", isPair ? ["Before", "After"][side] : "Graph"),
      make("span", plural(graph.count, "node") + (graph.fusedCount ? `, ${graph.fusedCount} fused` : ""), { class: "what" }));
    const button = (text, title, act) => {
      const made = make("button", text, { type: "button", title });
      made.addEventListener("click", act);
      bar.append(made);
    };
    button("−", "Zoom out (−)", () => this.zoom(1 / 1.4));
    button("+", "Zoom in (+)", () => this.zoom(1.4));
    button("Fit", "Show all (0)", () => this.fit());
    if (graph.groups.length > 1) {
      button("⊞", "Open all groups", () => this.setOpen(new Set(graph.groups.keys())));
      button("⊟", "Close all groups", () => this.setOpen(new Set([0])));
    }
    button("SVG", "Save this graph as a picture, open groups as they are", () => savePicture(this));
    this.svg = svg("svg", { tabindex: 0, role: "group", "aria-label": `${graph.title}: arrow keys move, plus and minus zoom, 0 shows all` });
    this.scene = svg("g", { class: "scene" });
    this.svg.append(this.scene);
    this.element.append(bar, this.svg);
    holder.append(this.element);
    this.listen();
    this.placed = place(graph, this.open);
    new ResizeObserver(() => this.resized()).observe(this.svg);
  }
  resized() {
    const first = !this.size?.w;
    this.size = { w: this.svg.clientWidth, h: this.svg.clientHeight };
    if (first && this.size.w) this.home();
    this.drawn = null;
    this.draw();
  }
  // At first: all if that can be read, else the top of it.
  home() {
    this.fit();
    if (this.view.k < 0.62) {
      const k = Math.max(0.62, Math.min(1, (this.size.w - 24) / this.placed.w));
      const first = [...this.placed.boxes.values()].filter((box) => box.y < this.size.h / k && !box.open);
      const x = first.reduce((sum, box) => sum + middle(box), 0) / first.length;
      this.look(x, this.size.h / 2 / k - 14 / k, k);
    }
  }
  fit() {
    const k = Math.min((this.size.w - 24) / this.placed.w, (this.size.h - 24) / this.placed.h, 1.15);
    this.look(this.placed.w / 2, this.placed.h / 2, k);
  }
  look(x, y, k = this.view.k) {
    const scale = Math.min(SCALES[1], Math.max(SCALES[0], k));
    this.view = { x: this.size.w / 2 - x * scale, y: this.size.h / 2 - y * scale, k: scale };
    this.draw();
  }
  zoom(factor, px = this.size.w / 2, py = this.size.h / 2) {
    const k = Math.min(SCALES[1], Math.max(SCALES[0], this.view.k * factor));
    const by = k / this.view.k;
    this.view = { x: px - (px - this.view.x) * by, y: py - (py - this.view.y) * by, k };
    this.draw();
  }
  move(dx, dy) {
    this.view = { ...this.view, x: this.view.x + dx, y: this.view.y + dy };
    this.draw();
  }
  // What was in the middle of the view, or under `anchor`, stays where it is.
  setOpen(open, anchor) {
    const was = anchor === undefined ? null : this.placed.boxes.get(anchor);
    this.open = open;
    this.placed = place(this.graph, open);
    this.drawn = null;
    const now = anchor === undefined ? null : this.placed.boxes.get(anchor);
    if (was && now) {
      const { k } = this.view;
      this.view = { k, x: this.view.x + (middle(was) - middle(now)) * k, y: this.view.y + (was.y - now.y) * k };
      this.draw();
    } else this.home();
    this.mark(this.lit, this.chosen);
  }
  toggle(group) {
    const open = new Set(this.open);
    if (!open.delete(group)) open.add(group);
    this.setOpen(open, ~group);
  }
  shown(node) {
    return shownAs(this.graph, node, this.open);
  }
  reveal(nodes) {
    const open = new Set(this.open);
    for (const node of nodes) for (const group of groupsAbove(this.graph, node)) open.add(group);
    if (open.size > this.open.size) {
      this.open = open;
      this.placed = place(this.graph, open);
      this.drawn = null;
    }
    const boxes = nodes.map((node) => this.placed.boxes.get(this.shown(node)));
    if (!boxes.length) return this.draw();
    const [left, top] = [Math.min(...boxes.map((box) => box.x)), Math.min(...boxes.map((box) => box.y))];
    const [right, bottom] = [Math.max(...boxes.map((box) => box.x + box.w)), Math.max(...boxes.map((box) => box.y + box.h))];
    const k = Math.min(1, 0.86 * this.size.w / (right - left), 0.86 * this.size.h / (bottom - top));
    this.look((left + right) / 2, (top + bottom) / 2, Math.max(k, 0.1));
  }
  mark(lit, chosen) {
    Object.assign(this, { lit, chosen });
    const items = new Set([...lit].map((node) => this.shown(node)));
    const item = chosen === null ? null : chosen >= 0 ? this.shown(chosen) : chosen;
    this.element.classList.toggle("lights", lit.size > 0);
    for (const element of this.scene.querySelectorAll("[data-item]")) {
      const at = Number(element.dataset.item);
      element.classList.toggle("lit", items.has(at));
      element.classList.toggle("chosen", at === item);
    }
    for (const element of this.scene.querySelectorAll(".wire")) {
      const [from, to] = [Number(element.dataset.from), Number(element.dataset.to)];
      element.classList.toggle("lit", from === item || to === item || (items.has(from) && items.has(to)));
    }
  }
  draw() {
    if (!this.size?.w) return;
    const { x, y, k } = this.view;
    this.scene.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${k.toFixed(4)})`);
    const seen = { left: -x / k, top: -y / k, right: (this.size.w - x) / k, bottom: (this.size.h - y) / k };
    const { drawn } = this;
    if (drawn && drawn.k === (k < LEAST_READABLE) && drawn.left <= seen.left && drawn.right >= seen.right && drawn.top <= seen.top &&
      drawn.bottom >= seen.bottom && drawn.right - drawn.left < 5 * (seen.right - seen.left)) return;
    const [dx, dy] = [(seen.right - seen.left) / 2, (seen.bottom - seen.top) / 2];
    this.drawn = { left: seen.left - dx, right: seen.right + dx, top: seen.top - dy, bottom: seen.bottom + dy, k: k < LEAST_READABLE };
    this.fill(this.drawn);
  }
  fill({ left, right, top, bottom }) {
    const boxes = [...this.placed.boxes.values()].filter((box) => box.x < right && box.x + box.w > left && box.y < bottom && box.y + box.h > top);
    const wires = this.placed.wires.filter((wire) => wire.left < right && wire.right > left && wire.top < bottom && wire.bottom > top);
    const isCoarse = boxes.length + wires.length > MOST_DRAWN;
    this.scene.replaceChildren(...(isCoarse ? this.coarse(boxes, wires) : this.fine(boxes, wires)));
    this.svg.dataset.drawn = boxes.length;
    this.mark(this.lit, this.chosen);
  }
  coarse(boxes, wires) {
    const made = [svg("path", { class: "wire", d: wires.map((wire) => wire.path).join("") })];
    const kinds = groupBy(boxes, (box) => (box.item < 0 ? (box.open ? "open" : "closed") : this.graph.nodes.family[box.item]));
    for (const [kind, list] of kinds) {
      const style = kind === "open" ? "fill: none; stroke: var(--soft)" : `fill: var(--${kind === "closed" ? "frame" : kind}); stroke: var(--soft)`;
      made.push(svg("path", { d: list.map(rectPath).join(""), style }));
    }
    return made;
  }
  fine(boxes, wires) {
    const open = boxes.filter((box) => box.open).map((box) => this.openBox(box));
    const lines = wires.flatMap((wire, at) => {
      const ends = { "data-from": wire.from, "data-to": wire.to };
      const [x, y] = wire.end;
      return [
        svg("path", { class: `wire${wire.far ? " far" : ""}`, d: wire.path, ...ends }),
        svg("path", { class: "tip", d: `M${x} ${y}l-3.4 -6.5h6.8z` }),
        svg("path", { class: "touch", d: wire.path, ...ends, "data-values": [...wire.values].join(" ") }),
      ];
    });
    return [...open, ...lines, ...boxes.filter((box) => !box.open).map((box) => (box.item < 0 ? this.closedBox(box) : this.nodeBox(box)))];
  }
  box(kind, { item, x, y, w, h }, radius) {
    const made = svg("g", { class: `item ${kind}`, "data-item": item, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
    made.append(svg("rect", { width: w.toFixed(1), height: h.toFixed(1), rx: radius }));
    return made;
  }
  nodeBox(box) {
    const { nodes } = this.graph;
    const { item } = box;
    const isGone = isPair && !this.side && nodes.role[item] === "node" && !others[0][item].length;
    const kinds = [nodes.role[item] === "node" ? "" : "interface", nodes.fused[item] ? "fused" : "", isGone ? "gone" : ""].join(" ");
    const made = this.box(`node ${kinds}`, box, nodes.role[item] === "node" ? 5 : 13);
    made.style.setProperty("--hue", `var(--${nodes.family[item]})`);
    const detail = nodes.detail[item];
    made.append(svg("text", { class: "title", x: box.w / 2, y: detail ? 16 : 17 }, short(nodes.title[item], 34)));
    if (detail) made.append(svg("text", { class: "detail", x: box.w / 2, y: 30 }, short(detail, 34)));
    return made;
  }
  closedBox(box) {
    const { graph } = this;
    const group = graph.groups[~box.item];
    const made = this.box("group", box, 7);
    made.append(svg("text", { class: "title", x: box.w / 2, y: 17 }, `▸ ${short(group.name, 34)}`));
    made.append(svg("text", { class: "detail", x: box.w / 2, y: 31 }, groupText(graph, ~box.item)));
    const families = groupBy(group.nodes, (node) => graph.nodes.family[node]);
    let x = 8;
    for (const family of FAMILIES) {
      const width = ((families.get(family)?.length ?? 0) / group.nodes.length) * (box.w - 16);
      if (width) made.append(svg("rect", { class: "mix", x, y: 37, width, height: 4, style: `fill: var(--${family})` }));
      x += width;
    }
    return made;
  }
  openBox(box) {
    const made = this.box("group open", box, 9);
    made.append(svg("text", { x: 10, y: 17 }, `▾ ${short(this.graph.groups[~box.item].name, 40)}`));
    return made;
  }
  listen() {
    let from = null;
    const itemAt = (event) => event.target.closest?.("[data-item]");
    this.svg.addEventListener("pointerdown", (event) => {
      from = { x: event.clientX, y: event.clientY, view: this.view, item: itemAt(event), moved: false };
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from) return hover(this, event, itemAt(event));
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (Math.hypot(dx, dy) > 4) from.moved = true;
      if (!from.moved) return;
      this.svg.classList.add("moving");
      this.view = { ...from.view, x: from.view.x + dx, y: from.view.y + dy };
      this.draw();
    });
    this.svg.addEventListener("pointerup", () => {
      this.svg.classList.remove("moving");
      if (from && !from.moved) this.click(from.item);
      from = null;
    });
    this.svg.addEventListener("pointercancel", () => (from = null));
    this.svg.addEventListener("pointerleave", () => hover(this, null, null));
    this.svg.addEventListener("wheel", (event) => {
      const box = this.svg.getBoundingClientRect();
      if (event.ctrlKey || event.metaKey) this.zoom(2 ** (-event.deltaY / 240), event.clientX - box.left, event.clientY - box.top);
      else {
        const [top, bottom] = [this.view.y, this.view.y + this.placed.h * this.view.k];
        const isAtEnd = event.deltaY > 0 ? bottom < this.size.h : top > 0; // then the page scrolls
        if (isAtEnd && !event.deltaX && !event.shiftKey) return;
        this.move(event.shiftKey ? -event.deltaY : -event.deltaX, event.shiftKey ? 0 : -event.deltaY);
      }
      event.preventDefault();
    }, { passive: false });
    const keys = { ArrowLeft: () => this.move(60, 0), ArrowRight: () => this.move(-60, 0), ArrowUp: () => this.move(0, 60), ArrowDown: () => this.move(0, -60),
      "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4), 0: () => this.fit() };
    this.svg.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }
  click(element) {
    if (!element) return clear();
    const item = Number(element.dataset.item);
    if (item < 0) {
      this.toggle(~item);
      chooseGroup(this.side, ~item);
    } else choose(this.side, item);
  }
}
