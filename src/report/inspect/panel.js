// The panel with all facts about a site or an operator.

const link = (text, go) => make("button", { type: "button", class: "link", click: go }, text);
const toNode = name => {
  const place = rowNamed.get(name);
  return place === undefined ? make("span", {}, name) : link(name, () => choose({ node: place }));
};
const listed = (names, item) => make("ul", {}, names.map(name => make("li", {}, item(name))));
const terms = entries => make("dl", {}, entries.filter(Boolean).flatMap(([term, ...said]) =>
  [make("dt", {}, term), make("dd", {}, ...said)]));
const bar = () => make("div", { class: "bar" },
  make("button", { type: "button", click: () => choose(null) }, isDiff ? "Overview" : "All sites"),
  make("button", { type: "button", "aria-label": "Close", click: close }, "✕"));

/** Renders the Markdown of one section: paragraphs, code, emphasis, and the text of links. */
const prose = text => text.split(/\n(?=\*[A-Z])|\n\n/).map(paragraph => {
  const inline = /`([^`]+)`|\[([^\]]+)\]\([^)]*\)|\*([^*]+)\*|\\(.)/g;
  const parts = [];
  let last = 0;
  for (const found of paragraph.matchAll(inline)) {
    const [whole, code, linked, strong, escaped] = found;
    parts.push(paragraph.slice(last, found.index),
      code ? make("code", {}, code) : strong ? make("strong", {}, strong) : linked ?? escaped);
    last = found.index + whole.length;
  }
  return make("p", {}, ...parts, paragraph.slice(last));
});

/** Draws the number of elements in each interval as bars. */
const histogram = ({ min, max, mean, counts }) => {
  const most = Math.max(...counts);
  const bars = counts.map(count => make("span", { style: `height: ${Math.ceil((count / most) * 100)}%` }));
  const digits = number => Number(number.toPrecision(4));
  return make("span", { class: "distribution" },
    make("span", { class: "histogram", role: "img", "aria-label": "Distribution of the elements" }, bars),
    make("span", { class: "faint" }, `${digits(min)} to ${digits(max)}, mean ${digits(mean)}`));
};
const elementsOf = (which, name) => {
  const elements = valueOf(which, name)?.elements;
  return elements ? histogram(elements) : null;
};

const tensorElement = ({ name, data_type, shape, formula, inputs, sites: own }) => make("div", { class: "tensor" },
  make("strong", {}, name), ` ${data_type}[${shape.join(", ")}]`, elementsOf(1, name),
  make("pre", { class: "formula" }, formula.split(/(?<=; )/).map(step => make("div", {}, step))),
  terms([inputs.length ? ["from", inputs.map(input => `${input} ${valueOf(0, input)?.of ?? ""}`.trim()).join("; ")] : null,
    own.length ? ["for", listed(own, site => link(site, () => choose({ site: siteNamed.get(site) })))] : null]));

const refusal = (opens, { what, reason, words, at: place }) => make("div", { class: "refusal" },
  make("div", {}, make("strong", {}, { scale: "Scale", shift: "Shift", forward: "Forward", backward: "Backward" }[what]),
    `: ${words}`, ...(place ? [", at ", toNode(place)] : [])),
  make("details", { open: opens ? "" : null }, make("summary", {}, reason), ...prose(reasons[reason] ?? "")));

const WAYS = {
  forward: "goes forward, into", backward: "goes backward, into", merged: "goes, with others, into one operator for",
  shift: "gives its shift to", scale: "gives its scale to",
};
const partElements = ({ part, goes, into, refusals }) => [
  make("h3", {}, part[0].toUpperCase() + part.slice(1), goes ? ` ${WAYS[goes] ?? goes}` : " stays"),
  into.length ? listed(into, toNode) : null,
  ...refusals.map((one, place) => refusal(refusals.findIndex(({ reason }) => reason === one.reason) === place, one)),
];

const siteElements = place => {
  const { kind, form, channels, axis, state, nodes, parts } = sites[place];
  return [
    make("p", { class: "state", "data-state": state }, `${STATES[state].sign} ${STATES[state].means}`),
    terms([["kind", kind], ["computes", form], ["channels", `${channels}, on axis ${axis}`]]),
    ...parts.flatMap(partElements),
    ...(tensorsOf[place].length ? [make("h3", {}, plural(tensorsOf[place].length, "new tensor"))] : []),
    ...tensorsOf[place].map(tensorElement),
    make("h3", {}, plural(nodes.length, "operator")),
    listed(nodes, toNode),
  ].filter(Boolean);
};
const sitePanel = place => [bar(), make("h2", {}, sites[place].name),
  make("div", { class: sites[place].state }, ...siteElements(place))];

const valueElement = which => name => {
  const maker = makers[which].get(name);
  const { of = "", stored } = valueOf(which, name) ?? {};
  return make("span", {}, maker === undefined ? name : link(name, () => choose({ node: maker })),
    ` ${of}${stored ? ", stored" : ""}`, elementsOf(which, name));
};
const nodePanel = place => {
  const row = rows[place];
  const told = [0, 1].flatMap(which => {
    const node = side(row, which);
    if (!node || (which === 1 && row.change === "same")) return [];
    return [make("h3", {}, row.change === "same" ? (isDiff ? "Both models" : "Before and after") : GRAPHS[which]), terms([
      ["is", node.operator],
      node.attributes?.length ? ["with", node.attributes.join(", ")] : null,
      ["reads", listed(node.inputs.filter(Boolean), valueElement(which))],
      ["makes", listed(node.outputs.filter(Boolean), valueElement(which))],
    ])];
  });
  const fresh = (side(row, 1)?.inputs ?? []).filter(input => tensorNamed.has(input));
  return [
    bar(), make("h2", {}, (row.before ?? row.after).name), make("p", {}, CHANGES[row.change]),
    ...(fresh.length ? [make("h3", {}, plural(fresh.length, "new tensor"))] : []),
    ...fresh.map(input => tensorElement(tensorNamed.get(input))),
    ...told,
    ...(row.sites ?? []).flatMap(site => [make("h3", {}, `It is part of ${sites[site].name}`),
      make("div", { class: sites[site].state }, ...siteElements(site))]),
  ];
};

const KEYS = [["↑ ↓", "the row above, below"], ["→ ←", "open, close a block"], ["Enter", "the details of a row"],
  ["n p", `the next, previous ${isDiff ? "change" : "site"}`], ["d", "draw the block"], ["/", "find"], ["Esc", "back"]];
const home = () => [
  make("h2", {}, sites.length ? plural(sites.length, "site")
    : isDiff ? "Two models, aligned by value" : "No normalizer was found"),
  isDiff ? make("p", {}, `The models differ in ${plural(changeStarts.length, "place")}.`) : null,
  make("ul", { id: "sites" }, sites.map(({ name, kind, state }, site) => make("li", { "data-state": state },
    make("span", { class: "state" }, STATES[state].sign), " ", link(name, () => choose({ site })),
    make("span", { class: "faint" }, ` ${kind}`)))),
  make("h3", {}, "Keys"),
  terms(KEYS.map(([keys, does]) => [make("span", {}, ...keys.split(" ").map(key => make("kbd", {}, key))), does])),
].filter(Boolean);

const close = () => {
  choose(null);
  current()?.focus({ preventScroll: true });
};
