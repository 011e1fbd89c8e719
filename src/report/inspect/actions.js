// Handles the mouse, the keys and the address, and renders the page at the start.

const clear = () => {
  Object.assign(filter, { text: "", states: new Set(), changes: false });
  find.value = "";
  document.querySelectorAll("#states button, #changes").forEach(button => button.setAttribute("aria-pressed", false));
};
const pressed = button => {
  const is = button.ariaPressed !== "true";
  button.ariaPressed = is;
  return is;
};

tree.addEventListener("click", ({ target }) => {
  const row = target.closest("[role=row]"), own = target.closest("[data-site]");
  if (!row) return;
  step(row);
  if (own) choose({ site: Number(own.dataset.site) }, { follows: false });
  else if (row.dataset.block) toggle(row);
  else choose({ node: Number(row.dataset.row) }, { follows: false });
});

const KEY = {
  ArrowDown: (all, place) => step(all[place + 1]),
  ArrowUp: (all, place) => step(all[place - 1]),
  Home: all => step(all[0]),
  End: all => step(all.at(-1)),
  ArrowRight: (all, place, row) => {
    if (row.ariaExpanded === "false") toggle(row);
    else if (row.ariaExpanded === "true") step(all[place + 1]);
  },
  ArrowLeft: (all, place, row) => {
    if (row.ariaExpanded === "true") toggle(row);
    else step(all.slice(0, place).findLast(other => Number(other.ariaLevel) < Number(row.ariaLevel)));
  },
  Enter: (all, place, row) => {
    if (row.dataset.block) return toggle(row);
    choose({ node: Number(row.dataset.row) }, { follows: false });
    panel.focus({ preventScroll: true });
  },
};
KEY[" "] = KEY.Enter;
tree.addEventListener("keydown", event => {
  const row = event.target.closest("[role=row]");
  if (!row || !KEY[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const all = [...tree.querySelectorAll("[role=row]")].filter(other => other.offsetParent !== null);
  KEY[event.key](all, all.indexOf(row), row);
});

const nextChange = by => {
  if (!changeStarts.length) return;
  const from = chosen?.node ?? (by > 0 ? -1 : rows.length);
  const place = by > 0 ? changeStarts.find(start => start > from) : changeStarts.findLast(start => start < from);
  choose({ node: place ?? changeStarts.at(by > 0 ? 0 : -1) }, { focuses: true });
};
const nextSite = by => {
  if (!sites.length) return;
  const from = chosen?.site ?? (by > 0 ? -1 : 0);
  choose({ site: (from + by + sites.length) % sites.length }, { focuses: true });
};
const next = isDiff ? nextChange : nextSite;
/** The block of the current row: the block itself if the row is its head. */
const currentBlock = () => {
  const { block, row } = current()?.dataset ?? {};
  return block === undefined ? blockOf[row] ?? 0 : Number(block);
};
at("draw").addEventListener("click", () => drawBlock(currentBlock()));
addEventListener("keydown", event => {
  if (drawing.open || event.ctrlKey || event.altKey || event.metaKey) return;
  const writes = event.target === find;
  if (event.key === "Escape" && (writes || chosen)) {
    if (writes) find.value = filter.text = "";
    if (writes) render();
    return close();
  }
  if (writes) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      current()?.focus();
    }
    return;
  }
  if (event.key === "/") {
    event.preventDefault();
    find.focus();
    find.select();
  } else if (event.key === "d") drawBlock(currentBlock());
  else if (event.key === "n") next(1);
  else if (event.key === "p") next(-1);
});

let waiting;
find.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    filter.text = find.value.trim().toLowerCase();
    render();
  }, 120);
});
at("changes").addEventListener("click", ({ currentTarget }) => {
  filter.changes = pressed(currentTarget);
  render();
});
const opens = which => {
  open = new Set(which);
  draw();
  step(tree.querySelector("[role=row]"), false);
};
at("unfold").addEventListener("click", () => opens(blocks.keys()));
at("fold").addEventListener("click", () => opens([]));
// On paper nothing can be opened, so all blocks are open there.
let openOnScreen;
addEventListener("beforeprint", () => {
  openOnScreen = open;
  opens(blocks.keys());
});
addEventListener("afterprint", () => opens(openOnScreen));
at("sides").addEventListener("click", ({ target }) => {
  if (!target.dataset.side) return;
  main.dataset.side = target.dataset.side;
  at("sides").querySelectorAll("button").forEach(button => { button.ariaPressed = button === target; });
});

// Renders the page at the start.

const [was, is] = data.file_bytes;
const [ofFirst, ofSecond] = isDiff ? ["in the first model", "in the second"] : ["before", "after"];
at("about").textContent = `unfold ${data.version}; ${plural(totals[0].before, "operator")} ${ofFirst}, ${totals[0].after} ${ofSecond}, `
  + `without Constants; file ${bytes(was)}${was === is ? "" : `${isDiff ? " and" : " to"} ${bytes(is)}`}`;
at("about").after(...data.streams.map(stream => make("p", {}, stream)));
at("heads").children[0].textContent = `${GRAPHS[0]}: ${plural(totals[0].before, "operator")}`;
at("heads").children[1].textContent = `${GRAPHS[1]}: ${plural(totals[0].after, "operator")}`;
at("sides").querySelectorAll("button").forEach((button, which) => { button.textContent = GRAPHS[which]; });
if (isDiff) {
  find.placeholder = "Find operators, values  ( / )";
  find.ariaLabel = "Find operators, values";
  tree.ariaLabel = "The graphs of both models";
  at("changes").title = "Only operators without an equal one in the other model";
}
at("states").hidden = isDiff;
at("states").append(...Object.entries(STATES).map(([state, { sign, means }]) => {
  const count = sites.filter(site => site.state === state).length;
  const toggles = ({ currentTarget }) => {
    if (pressed(currentTarget)) filter.states.add(state);
    else filter.states.delete(state);
    render();
  };
  return make("button", {
    type: "button", "data-state": state, "data-count": count, "aria-pressed": false, title: means, click: toggles,
    disabled: count === 0 ? "" : null,
  }, make("b", {}, sign), ` ${count} ${state}`);
}));

const counts = new Map();
rows.forEach(row => [0, 1].forEach(which => {
  const operator = side(row, which)?.operator;
  if (operator === undefined) return;
  if (!counts.has(operator)) counts.set(operator, [0, 0]);
  counts.get(operator)[which] += 1;
}));
const changes = [...counts].map(([operator, [before, after]]) => [operator, before, after, after - before])
  .sort((a, b) => a[3] - b[3] || b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
const sign = change => change === 0 ? "=" : `${change > 0 ? "+" : "−"}${Math.abs(change)}`;
at("summary").querySelector("summary").textContent = `Operators by kind`;
at("summary").querySelector("div").append(make("table", {},
  make("thead", {}, make("tr", {}, ["operator", ...GRAPHS.map(graph => graph.toLowerCase()), "change"].map((head, column) =>
    make("th", { scope: "col", class: column ? null : "text" }, head)))),
  make("tbody", {}, changes.map(([operator, before, after, change]) => make("tr", {},
    make("td", { class: "text" }, operator), make("td", {}, before), make("td", {}, after), make("td", {}, sign(change)))))));

// Opens as many levels of blocks as there is room for, and all blocks with a single part.
for (let level = [0]; level.length;) {
  const inner = level.flatMap(block => blocks[block].items.map(item => item.block).filter(block => block !== undefined));
  const size = [...open, 0, ...inner].reduce((sum, block) => sum + blocks[block].items.length, 0);
  if (size > FEW && inner.length > 1) break;
  inner.forEach(block => open.add(block));
  level = inner;
}
render();
addEventListener("hashchange", ofAddress);
ofAddress();
