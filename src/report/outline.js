"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { rows, blocks, sites, tensors, values, reasons } = data;
  const at = id => document.getElementById(id);
  const [tree, panel, main, find] = [at("tree"), at("panel"), document.querySelector("main"), at("find")];

  const STATES = {
    folded: { sign: "✓", means: "folded: all that can be folded of it is" },
    partly: { sign: "◐", means: "folded in part: something of it went, and something stayed" },
    refused: { sign: "✕", means: "refused: something stands in the way" },
    left: { sign: "–", means: "left: nothing of it is to be folded" },
  };
  const WORST = ["refused", "partly", "left", "folded"];
  const CHANGES = {
    same: "It is as it was.",
    rewired: "It is as it was, but for the names of what it reads or makes.",
    changed: "It has changed.",
    gone: "It is gone: only what is folded, constant or there twice needed it.",
    new: "It is new.",
  };
  // More sites of a block than that are only counted, and a page of no more rows than that begins open.
  const CHIPS = 6, FEW = 60;

  /** An element, with attributes, handlers (functions) and children; what is null is left out. */
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

  // What is where.

  const siteNamed = new Map(sites.map(({ name }, site) => [name, site]));
  const tensorNamed = new Map(tensors.map(tensor => [tensor.name, tensor]));
  const tensorsOf = sites.map(() => []);
  tensors.forEach(tensor => tensor.sites.forEach(name => tensorsOf[siteNamed.get(name)].push(tensor)));
  const rowNamed = new Map(), makers = [new Map(), new Map()];
  /** A row's operator before (0) or after (1); nothing where there is none. */
  const side = (row, which) =>
    which === 0 ? row.before : row.after ?? (row.change === "gone" ? undefined : row.before);
  rows.forEach((row, place) => [1, 0].forEach(which => {
    const node = side(row, which);
    if (!node) return;
    rowNamed.set(node.name, place);
    node.outputs.forEach(output => output && makers[which].set(output, place));
  }));
  const valueOf = (which, name) => (which === 1 && values[1][name]) || values[0][name];
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

  // What is shown.

  const filter = { text: "", states: new Set(), changes: false };
  const isFiltered = () => filter.text !== "" || filter.states.size > 0 || filter.changes;
  const passes = place => {
    const { change, sites: own } = rows[place];
    return (!filter.changes || (change !== "same" && change !== "rewired"))
      && (filter.states.size === 0 || own?.some(site => filter.states.has(sites[site].state)))
      && texts[place].includes(filter.text);
  };
  let shown = new Set(), shownBlocks = new Set(), open = new Set(), unfiltered = null;
  let chosen = null;

  const worst = places => WORST.find(state => places.some(site => sites[site].state === state));
  /** The end of a name that says more than what is around it. */
  const short = name => name.split("/").pop();
  const within = (name, block) => {
    const path = [];
    for (let place = block; place; place = parent[place]) path.unshift(blocks[place].name);
    const prefix = path.join(".") + ".";
    return name.startsWith(prefix) ? name.slice(prefix.length) : name;
  };
  /** A site in its own module is called by its kind; several of one module are numbered. */
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

  const extents = (which, node) => {
    const of = valueOf(which, node.outputs[0])?.of ?? "";
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
      make("span", { class: "count", title: "operators before and after" }, before === after ? `${before}` : `${before} → ${after}`)));
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
    // The head stays where it is, for it may have the focus.
    while (head.nextSibling) head.nextSibling.remove();
    if (opens) head.after(...itemElements(block, level + 1));
  };

  // Which row has the focus, and what is chosen.

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

  /** Shows a site, an operator, or nothing in particular; `follows` is whether the tree goes there too. */
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

  // The panel.

  const link = (text, go) => make("button", { type: "button", class: "link", click: go }, text);
  const toNode = name => {
    const place = rowNamed.get(name);
    return place === undefined ? make("span", {}, name) : link(name, () => choose({ node: place }));
  };
  const listed = (names, item) => make("ul", {}, names.map(name => make("li", {}, item(name))));
  const terms = entries => make("dl", {}, entries.filter(Boolean).flatMap(([term, ...said]) =>
    [make("dt", {}, term), make("dd", {}, ...said)]));
  const bar = () => make("div", { class: "bar" },
    make("button", { type: "button", click: () => choose(null) }, "All sites"),
    make("button", { type: "button", "aria-label": "Close", click: close }, "✕"));

  /** Markdown of one section: paragraphs, code, emphasis, and links as their text. */
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

  const tensorElement = ({ name, data_type, shape, formula, inputs, sites: own }) => make("div", { class: "tensor" },
    make("strong", {}, name), ` ${data_type}[${shape.join(", ")}]`,
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
    return make("span", {}, maker === undefined ? name : link(name, () => choose({ node: maker })), ` ${of}${stored ? ", stored" : ""}`);
  };
  const nodePanel = place => {
    const row = rows[place];
    const told = [0, 1].flatMap(which => {
      const node = side(row, which);
      if (!node || (which === 1 && row.change === "same")) return [];
      return [make("h3", {}, row.change === "same" ? "Before and after" : ["Before", "After"][which]), terms([
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
    ["n p", "the next, previous site"], ["/", "find"], ["Esc", "back"]];
  const home = () => [
    make("h2", {}, sites.length ? plural(sites.length, "site") : "No normalizer was found"),
    make("ul", { id: "sites" }, sites.map(({ name, kind, state }, site) => make("li", { "data-state": state },
      make("span", { class: "state" }, STATES[state].sign), " ", link(name, () => choose({ site })),
      make("span", { class: "faint" }, ` ${kind}`)))),
    make("h3", {}, "Keys"),
    terms(KEYS.map(([keys, does]) => [make("span", {}, ...keys.split(" ").map(key => make("kbd", {}, key))), does])),
  ];

  const close = () => {
    choose(null);
    current()?.focus({ preventScroll: true });
  };

  // What is done.

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

  const next = by => {
    if (!sites.length) return;
    const from = chosen?.site ?? (by > 0 ? -1 : 0);
    choose({ site: (from + by + sites.length) % sites.length }, { focuses: true });
  };
  addEventListener("keydown", event => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
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
    } else if (event.key === "n") next(1);
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
  at("unfold").addEventListener("click", () => {
    open = new Set(blocks.keys());
    draw();
    step(tree.querySelector("[role=row]"), false);
  });
  at("fold").addEventListener("click", () => {
    open = new Set();
    draw();
    step(tree.querySelector("[role=row]"), false);
  });
  at("sides").addEventListener("click", ({ target }) => {
    if (!target.dataset.side) return;
    main.dataset.side = target.dataset.side;
    at("sides").querySelectorAll("button").forEach(button => { button.ariaPressed = button === target; });
  });

  // What stands there from the beginning.

  const [was, is] = data.file_bytes;
  at("about").textContent = `unfold ${data.version}; ${plural(totals[0].before, "operator")} before, ${totals[0].after} after, `
    + `without Constants; file ${bytes(was)}${was === is ? "" : ` to ${bytes(is)}`}`;
  at("heads").children[0].textContent = `Before: ${plural(totals[0].before, "operator")}`;
  at("heads").children[1].textContent = `After: ${plural(totals[0].after, "operator")}`;
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
    make("thead", {}, make("tr", {}, ["operator", "before", "after", "change"].map((head, column) =>
      make("th", { scope: "col", class: column ? null : "text" }, head)))),
    make("tbody", {}, changes.map(([operator, before, after, change]) => make("tr", {},
      make("td", { class: "text" }, operator), make("td", {}, before), make("td", {}, after), make("td", {}, sign(change)))))));

  // As many levels as there is room for, and what has only one part.
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
})();
