// Tables that sort by a click on a column's title and filter by what is typed.
const ROWS_AT_ONCE = 200;

// columns: [{title, field, number, text}] over an object of equally long lists.
const makeTable = ({ table, filter, what, more, source, columns: wanted, noun, onChoose }) => {
  const columns = wanted.filter((one) => !one.optional || source[one.field].some((value) => value !== null));
  const count = source[columns[0].field].length;
  const words = [...Array(count).keys()].map((index) =>
    columns.filter((one) => !one.number).map((one) => source[one.field][index]).flat().join(" ").toLowerCase());
  let order = { column: columns.findIndex((one) => one.first), down: true };
  let limit = ROWS_AT_ONCE;
  let marked = -1;

  const value = (column, index) => source[column.field][index];
  const sorted = () => {
    const wanted = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...Array(count).keys()].filter((index) => wanted.every((word) => words[index].includes(word)));
    const column = columns[order.column];
    if (!column) return found; // in the order of the data until a title is chosen
    const sign = order.down ? -1 : 1;
    return found.sort((a, b) => {
      const [first, second] = [value(column, a), value(column, b)];
      if (first === null || second === null) return (first === null) - (second === null) || a - b; // unknown comes last
      if (column.number) return sign * (first - second) || a - b;
      return sign * String(first).localeCompare(String(second), "en", { numeric: true }) || a - b;
    });
  };

  const head = make("tr");
  columns.forEach((column, at) => {
    const cell = make("th", "", { scope: "col", class: column.number ? "number" : "" });
    const button = make("button", column.title, { type: "button", title: column.help ?? "" });
    button.addEventListener("click", () => {
      order = { column: at, down: order.column === at ? !order.down : Boolean(column.number) };
      draw();
    });
    cell.append(button);
    head.append(cell);
  });
  const body = make("tbody");
  const header = make("thead");
  header.append(head);
  table.append(header, body);

  const row = (index) => {
    const made = make("tr", "", { "data-index": index, class: index === marked ? "chosen" : "" });
    columns.forEach((column, at) => {
      const text = value(column, index) === null ? "" : (column.text ?? String)(value(column, index));
      const cell = make("td", at || !onChoose ? text : "", { class: column.number ? "number" : column.wraps ? "text" : "" });
      if (!column.number && text.length > 30) cell.title = text;
      if (!at && onChoose) {
        const button = make("button", text, { type: "button", class: "go" });
        button.addEventListener("click", () => onChoose(index));
        cell.append(button);
      }
      made.append(cell);
    });
    return made;
  };
  const draw = () => {
    const found = sorted();
    const shown = found.slice(0, limit);
    body.replaceChildren(...shown.map(row));
    [...head.children].forEach((cell, at) =>
      at === order.column ? cell.setAttribute("aria-sort", order.down ? "descending" : "ascending") : cell.removeAttribute("aria-sort"));
    const part = shown.length < found.length ? countText(shown.length) : "";
    what.textContent =
      found.length < count
        ? `${countText(found.length)} of ${plural(count, noun)} match${part && `, ${part} are shown`}`
        : (part && `${part} of `) + plural(count, noun);
    if (more) {
      more.hidden = shown.length === found.length;
      more.textContent = `Show ${countText(Math.min(ROWS_AT_ONCE, found.length - shown.length))} more`;
    }
  };
  filter.addEventListener("input", () => {
    limit = ROWS_AT_ONCE;
    draw();
  });
  more?.addEventListener("click", () => {
    limit += ROWS_AT_ONCE;
    draw();
  });
  draw();
  return {
    mark: (index) => {
      marked = index;
      for (const one of body.children) one.classList.toggle("chosen", Number(one.dataset.index) === index);
    },
  };
};
