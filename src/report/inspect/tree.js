// The tree of blocks and rows, with its filter, its focus and the selection.

const filter = { text: "", states: new Set(), changes: false };
const isFiltered = () => filter.text !== "" || filter.states.size > 0 || filter.changes;
const passes = place => {
  const { sites: own } = rows[place];
  return (!filter.changes || isChange(place))
    && (filter.states.size === 0 || own?.some(site => filter.states.has(sites[site].state)))
    && texts[place].includes(filter.text);
};
let shown = new Set(), shownBlocks = new Set(), open = new Set(), unfiltered = null;
let chosen = null;

const worst = places => WORST.find(state => places.some(site => sites[site].state === state));
/** `short` is the part of a name after its last slash, and `within` the part after the names of its blocks. */
const short = name => name.split("/").pop();
const within = (name, block) => {
  const path = [];
  for (let place = block; place; place = parent[place]) path.unshift(blocks[place].name);
  const prefix = path.join(".") + ".";
  return name.startsWith(prefix) ? name.slice(prefix.length) : name;
};
/** The label of a site: its kind if it is in its own module. Several sites of one module are numbered. */
const siteWithin = (site, block) => {
  const [module, number] = sites[site].name.split(/(?=#\d+$)/);
  const name = within(`${module}.`, block);
  return (name === "" ? sites[site].kind : name.slice(0, -1)) + (number ?? "");
};

const chip = (site, name) => make("button", {
  type: "button", class: "chip", tabindex: -1, "data-state": sites[site].state, "data-site": site,
  title: `${sites[site].name}: ${sites[site].kind}, ${STATES[sites[site].state].means}`,
}, `${STATES[sites[site].state].sign} ${name}`);

const chips = block => {
  const own = [...totals[block].sites];
  if (own.length <= CHIPS) return own.map(site => chip(site, siteWithin(site, block)));
  return Object.entries(STATES).map(([state, { sign, means }]) => {
    const count = own.filter(site => sites[site].state === state).length;
    return count === 0 ? null : make("span", { class: "chip", "data-state": state, title: means }, `${sign} ${count}`);
  });
};

const extents = (which, node) => extentsOf(which, node.outputs[0]);
const extentsOf = (which, name) => {
  const of = valueOf(which, name)?.of ?? "";
  return of.slice(of.indexOf("[") + 1, -1).replaceAll(", ", "×");
};

const cell = (which, node, extra) => {
  const cell = make("span", { class: `cell ${["before", "after"][which]}`, role: "gridcell" });
  if (!node) return cell;
  const name = short(node.name);
  cell.append(
    make("span", { class: "op" }, node.operator),
    make("span", { class: "name", title: node.name }, name === node.operator ? "" : name),
    ...extra,
    make("span", { class: "shape" }, extents(which, node)),
  );
  return cell;
};

const rowElement = (place, level) => {
  const row = rows[place], own = row.sites ?? [];
  const after = side(row, 1);
  const fresh = (after?.inputs ?? []).filter(input => tensorNamed.has(input));
  const first = own.filter(site => rowsOf[site][0] === place);
  const element = make("div", {
    role: "row", class: `row ${row.change} c-${row.class.toLowerCase()}`, tabindex: -1, "aria-level": level, "data-row": place,
    "data-state": own.length ? worst(own) : null, style: `--level: ${level - 1}`,
  },
  cell(0, row.before, first.map(site => chip(site, sites[site].kind))),
  cell(1, after, fresh.length ? [make("span", { class: "new-weight", title: fresh.join(", ") }, `≔ ${short(fresh[0])}`)] : []));
  mark(element);
  return element;
};

const blockElement = (block, level) => {
  const { before, after } = totals[block];
  const head = make("div", {
    role: "row", class: "row head", tabindex: -1, "aria-level": level, "data-block": block,
    "aria-expanded": open.has(block), style: `--level: ${level - 1}`,
  }, make("span", { class: "cell", role: "gridcell", "aria-colspan": 2 },
    make("span", { class: "title" }, blocks[block].name), make("span", { class: "chips" }, chips(block)),
    make("span", { class: "count", title: `operators: ${GRAPHS.join(", ").toLowerCase()}` }, before === after ? `${before}` : `${before} → ${after}`)));
  const element = make("div", { role: "presentation" }, head);
  if (open.has(block)) element.append(...itemElements(block, level + 1));
  return element;
};

const itemElements = (block, level) => blocks[block].items
  .filter(({ row, block: inner }) => inner === undefined ? shown.has(row) : shownBlocks.has(inner))
  .map(({ row, block: inner }) => inner === undefined ? rowElement(row, level) : blockElement(inner, level));

const render = () => {
  const focus = current()?.dataset;
  shown = new Set([...rows.keys()].filter(passes));
  shownBlocks = new Set([...shown].flatMap(around));
  if (isFiltered() && unfiltered === null) unfiltered = open;
  if (isFiltered()) open = new Set(shownBlocks);
  else if (unfiltered !== null) [open, unfiltered] = [unfiltered, null];
  draw();
  const again = focus && tree.querySelector(focus.row ? `[data-row="${focus.row}"]` : `[data-block="${focus.block}"]`);
  step(again ?? tree.querySelector("[role=row]"), false);
  at("none").textContent = shown.size ? "" : "Nothing is like that.";
};
const draw = () => tree.replaceChildren(...itemElements(0, 1));

const toggle = (head, opens = head.ariaExpanded !== "true") => {
  const block = Number(head.dataset.block), level = Number(head.ariaLevel);
  if (opens) open.add(block);
  else open.delete(block);
  head.ariaExpanded = opens;
  // The head is not replaced, because it may have the focus.
  while (head.nextSibling) head.nextSibling.remove();
  if (opens) head.after(...itemElements(block, level + 1));
};

// The focus and the selection.

const current = () => tree.querySelector("[role=row][tabindex='0']");
const step = (row, focuses = true) => {
  if (!row) return;
  current()?.setAttribute("tabindex", -1);
  row.tabIndex = 0;
  if (focuses) {
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }
};

const takes = () => new Set(chosen?.site === undefined ? [] : sites[chosen.site].parts.flatMap(part => part.into));
const mark = (element, taking = takes()) => {
  const place = Number(element.dataset.row);
  if (Number.isNaN(place)) return;
  element.setAttribute("aria-selected", chosen?.node === place);
  element.classList.toggle("own", chosen?.site !== undefined && rowsOf[chosen.site].includes(place));
  const node = side(rows[place], 1);
  element.classList.toggle("takes", node !== undefined && (taking.has(node.name) || taking.has(rows[place].before?.name)));
};

const reveal = (place, focuses) => {
  if (place === undefined) return;
  if (!shown.has(place)) {
    clear();
    render();
  }
  around(place).reverse().forEach(block => {
    const head = tree.querySelector(`[data-block="${block}"]`);
    if (head?.ariaExpanded === "false") toggle(head);
  });
  const row = tree.querySelector(`[data-row="${place}"]`);
  step(row, focuses);
  row?.scrollIntoView({ block: "nearest" });
};

/** Selects a site or an operator, or clears the selection. If `follows`, the tree scrolls to it. */
const choose = (what, { follows = true, focuses = false } = {}) => {
  chosen = what;
  const address = what === null ? "" : `#${Object.entries(what).map(pair => pair.join("=")).join("&")}`;
  if (location.hash !== address) history.replaceState(null, "", address || location.pathname + location.search);
  panel.classList.toggle("chosen", what !== null);
  const body = what === null ? home() : what.site === undefined ? nodePanel(what.node) : sitePanel(what.site);
  const reads = panel.contains(document.activeElement);
  panel.replaceChildren(...body);
  panel.scrollTop = 0;
  if (reads) panel.focus({ preventScroll: true });
  if (follows && what !== null) reveal(what.node ?? rowsOf[what.site][0], focuses);
  const taking = takes();
  tree.querySelectorAll("[data-row]").forEach(row => mark(row, taking));
};

const ofAddress = () => {
  const asked = new URLSearchParams(location.hash.slice(1));
  const place = (name, list) => {
    const place = asked.has(name) ? Number(asked.get(name)) : NaN;
    return Number.isInteger(place) && place >= 0 && place < list.length ? { [name]: place } : null;
  };
  choose(place("site", sites) ?? place("node", rows), { focuses: false });
};
