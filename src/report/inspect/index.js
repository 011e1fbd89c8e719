// The data of the page, and indices into them.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const { rows, blocks, sites, tensors, values, reasons } = data;
const at = id => document.getElementById(id);
const [tree, panel, main, find] = [at("tree"), at("panel"), document.querySelector("main"), at("find")];

const STATES = {
  folded: { sign: "✓", means: "folded: everything in it that can fold" },
  partly: { sign: "◐", means: "folded in part: the rest stays, for the reasons below" },
  refused: { sign: "✕", means: "refused, for the reasons below" },
  left: { sign: "–", means: "left: there is nothing to fold" },
};
const WORST = ["refused", "partly", "left", "folded"];
const isDiff = data.command === "diff";
const GRAPHS = isDiff ? ["First model", "Second model"] : ["Before", "After"];
const CHANGES = isDiff ? {
  same: "Both models have it.",
  rewired: "Both models have it, with other names for what it reads or makes.",
  changed: "Each model computes this value in its own way.",
  gone: "Only the first model has it.",
  new: "Only the second model has it.",
} : {
  same: "Unchanged.",
  rewired: "Unchanged, except for the names of its inputs or outputs.",
  changed: "It has other constants or attributes, or is another operator.",
  gone: "Removed: only folded, constant or duplicate operators read its result.",
  new: "New.",
};
// The maximum number of sites of a block that are listed, and of rows that are open at the start.
const CHIPS = 6, FEW = 60;

/** Creates an element with attributes, handlers (functions) and children. Null values are left out. */
const make = (tag, attributes, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
};
const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const bytes = count => {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]].find(([size]) => count >= size) ?? [1, "B"];
  return `${(count / size).toFixed(size === 1 ? 0 : 1)} ${unit}`;
};

const siteNamed = new Map(sites.map(({ name }, site) => [name, site]));
const tensorNamed = new Map(tensors.map(tensor => [tensor.name, tensor]));
const tensorsOf = sites.map(() => []);
tensors.forEach(tensor => tensor.sites.forEach(name => tensorsOf[siteNamed.get(name)].push(tensor)));
const rowNamed = new Map(), makers = [new Map(), new Map()];
/** A row's operator before (0) or after (1); undefined if it has none. */
const side = (row, which) =>
  which === 0 ? row.before : row.after ?? (row.change === "gone" ? undefined : row.before);
rows.forEach((row, place) => [1, 0].forEach(which => {
  const node = side(row, which);
  if (!node) return;
  rowNamed.set(node.name, place);
  node.outputs.forEach(output => output && makers[which].set(output, place));
}));
const valueOf = (which, name) => (which === 1 && values[1][name]) || values[0][name];
const isChange = place => !["same", "rewired"].includes(rows[place].change);
/** The rows at which a run of changed rows begins. */
const changeStarts = [...rows.keys()].filter(place => isChange(place) && !(place > 0 && isChange(place - 1)));
const rowsOf = sites.map(() => []);
rows.forEach(({ sites: own }, place) => own?.forEach(site => rowsOf[site].push(place)));

const parent = [], blockOf = [];
blocks.forEach(({ items }, block) => items.forEach(({ row, block: inner }) => {
  if (inner === undefined) blockOf[row] = block;
  else parent[inner] = block;
}));
const around = row => {
  const found = [];
  for (let block = blockOf[row]; block; block = parent[block]) found.push(block);
  return found;
};
const totals = blocks.map(() => ({ before: 0, after: 0, sites: new Set() }));
rows.forEach((row, place) => [0, ...around(place)].forEach(block => {
  totals[block].before += row.before ? 1 : 0;
  totals[block].after += row.change === "gone" ? 0 : 1;
  row.sites?.forEach(site => totals[block].sites.add(site));
}));
const texts = rows.map(row => [row.before, row.after].filter(Boolean)
  .flatMap(node => [node.operator, node.name, ...node.inputs, ...node.outputs])
  .concat((row.sites ?? []).flatMap(site => [sites[site].name, sites[site].kind])).join("\n").toLowerCase());
