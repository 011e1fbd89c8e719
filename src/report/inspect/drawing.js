// Draws a block before and after, as boxes and arrows.

// The maximum number of boxes of a drawing. In a larger block, each inner block is one box.
const DRAWN = 160;
const drawing = at("drawing");
const sheets = [...drawing.querySelectorAll("svg")];
const NAMESPACE = sheets[0].namespaceURI;
let drawnBlock = 0;
const view = { x: 0, y: 0, scale: 1, sizes: [], width: 1, height: 1 };

/** Creates an element of a drawing, like `make`. */
const draft = (tag, attributes, ...children) => {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
};

/** The rows of a block with those of its inner blocks. */
const rowsWithin = block => blocks[block].items
  .flatMap(({ row, block: inner }) => inner === undefined ? [row] : rowsWithin(inner));

/** The groups of rows that become one box each: single rows, or whole inner blocks of a large block. */
const groupsOf = block => {
  const all = rowsWithin(block);
  if (all.length <= DRAWN) return all.map(row => ({ row, rows: [row] }));
  return blocks[block].items.map(({ row, block: inner }) =>
    inner === undefined ? { row, rows: [row] } : { block: inner, rows: rowsWithin(inner) });
};

/** The boxes and arrows of a block on one side. */
const graphOf = (block, which) => {
  const groups = groupsOf(block).filter(({ rows: own }) => own.some(row => side(rows[row], which)));
  const boxes = groups.map(group => ({ ...group }));
  const boxOf = new Map(groups.flatMap(({ rows: own }, box) => own.map(row => [row, box])));
  const inputs = new Map(), arrows = new Map();
  const connect = (from, to) => { if (from !== to) arrows.set(`${from} ${to}`, [from, to]); };
  boxes.slice().forEach(({ rows: own }, box) => own.forEach(row =>
    (side(rows[row], which)?.inputs ?? []).filter(Boolean).forEach(name => {
      const maker = boxOf.get(makers[which].get(name));
      if (maker !== undefined) return connect(maker, box);
      if (valueOf(which, name)?.stored) return;
      if (!inputs.has(name)) inputs.set(name, boxes.push({ isInput: true, name, rows: [] }) - 1);
      connect(inputs.get(name), box);
    })));
  return { boxes, arrows: [...arrows.values()] };
};

/** The two lines of a box, its class, and what a click on it does. */
const looks = ({ isInput, name, block, row }, which) => {
  if (isInput) return { title: name, lines: [short(name), extentsOf(which, name)], kind: "input" };
  if (block !== undefined) {
    const { before, after } = totals[block];
    return { title: blocks[block].name, lines: [blocks[block].name, plural([before, after][which], "operator")],
      kind: "inner", go: () => drawBlock(block) };
  }
  const node = side(rows[row], which), own = rows[row].sites ?? [];
  return { title: node.name, lines: [node.operator, extents(which, node)],
    kind: `${rows[row].change} c-${rows[row].class.toLowerCase()}`, state: own.length ? worst(own) : null,
    go: () => {
      drawing.close();
      choose({ node: row }, { focuses: true });
    } };
};

const boxElement = (box, { x, y }, which) => {
  const { title, lines, kind, state, go } = looks(box, which);
  const enters = event => { if (event.key === "Enter") go(); };
  return draft("g", { class: `box ${kind}`, transform: `translate(${x} ${y})`, "data-state": state,
    ...(go ? { tabindex: 0, role: "button", "aria-label": `${lines[0]} ${title}`, click: go, keydown: enters } : {}) },
  draft("title", {}, title),
  draft("rect", { x: -BOX.width / 2, y: -BOX.height / 2, width: BOX.width, height: BOX.height, rx: 6 }),
  ...lines.map((line, at) => draft("text", { y: at ? 13 : -2, class: at ? "below" : null }, clipped(line))));
};
const clipped = line => line.length > 21 ? `${line.slice(0, 20)}…` : line;

/** A curve from the lower edge of a box to the upper edge of another one, with a head. */
const arrowElement = points => {
  const last = points.length - 1, half = BOX.height / 2, bend = BOX.down;
  const ends = points.map(({ x, y }, at) => ({ x, top: at ? y - half : y + half, bottom: at === last ? y - half : y + half }));
  const curves = ends.slice(1).map(({ x, top, bottom }, at) => {
    const from = ends[at];
    return `C ${from.x} ${from.bottom + bend / 2} ${x} ${top - bend / 2} ${x} ${top} L ${x} ${bottom}`;
  });
  const { x, top } = ends[last];
  return draft("path", { class: "arrow",
    d: `M ${ends[0].x} ${ends[0].bottom} ${curves.join(" ")} M ${x - 4} ${top - 7} L ${x} ${top} L ${x + 4} ${top - 7}` });
};

const drawSide = (block, which) => {
  const { boxes, arrows } = graphOf(block, which);
  const sheet = sheets[which];
  const { before, after } = totals[block];
  sheet.setAttribute("aria-label", `${GRAPHS[which]}: ${plural([before, after][which], "operator")}`);
  sheet.previousElementSibling.textContent = sheet.getAttribute("aria-label");
  if (!boxes.length) {
    sheet.replaceChildren();
    return { width: 0, height: 0 };
  }
  const { centres, paths, width, height } = layout(boxes, arrows);
  sheet.replaceChildren(...paths.map(arrowElement), ...boxes.map((box, at) => boxElement(box, centres[at], which)));
  return { width, height };
};

/** Draws a block, or says that it has too many parts. */
const drawBlock = block => {
  drawnBlock = block;
  at("outer").hidden = parent[block] === undefined;
  const count = groupsOf(block).length;
  at("drawn").textContent = blocks[block].name || data.model;
  const isTooLarge = count > DRAWN;
  at("too-many").textContent = isTooLarge
    ? `${count.toLocaleString("en")} parts are too many for a drawing. Draw an inner block.` : "";
  drawing.classList.toggle("empty", isTooLarge);
  if (!drawing.open) drawing.showModal();
  at("drawn").focus();
  if (isTooLarge) return;
  view.sizes = [0, 1].map(which => drawSide(block, which));
  view.width = Math.max(...view.sizes.map(size => size.width));
  view.height = Math.max(...view.sizes.map(size => size.height));
  fit();
};

// Zoom and pan act on both sides at once. The narrower side is centred like the wider one.

const show = () => sheets.forEach((sheet, which) => {
  const { width, height } = sheet.getBoundingClientRect();
  const left = view.x - (view.width - view.sizes[which].width) / 2;
  sheet.setAttribute("viewBox", `${left} ${view.y} ${width / view.scale} ${height / view.scale}`);
});
const fit = () => {
  const { width, height } = sheets[0].getBoundingClientRect();
  view.scale = Math.min(1.25, width / (view.width + 16), Math.max(height / (view.height + 16), .5));
  view.x = (view.width - width / view.scale) / 2;
  view.y = -8;
  show();
};
const pan = (x, y) => {
  view.x += x / view.scale;
  view.y += y / view.scale;
  show();
};
/** Zooms by a factor, around a point of the sheet. */
const zoom = (factor, x = sheets[0].clientWidth / 2, y = sheets[0].clientHeight / 2) => {
  const scale = Math.min(4, Math.max(.05, view.scale * factor));
  view.x += x / view.scale - x / scale;
  view.y += y / view.scale - y / scale;
  view.scale = scale;
  show();
};

const MOVES = {
  ArrowLeft: () => pan(-60, 0), ArrowRight: () => pan(60, 0), ArrowUp: () => pan(0, -60), ArrowDown: () => pan(0, 60),
  "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(.8), 0: fit,
};
drawing.addEventListener("keydown", event => {
  if (!MOVES[event.key] || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  MOVES[event.key]();
});
drawing.addEventListener("click", ({ target }) => MOVES[target.dataset?.move]?.());
at("outer").addEventListener("click", () => drawBlock(parent[drawnBlock]));
at("undraw").addEventListener("click", () => drawing.close());
sheets.forEach(sheet => {
  sheet.addEventListener("wheel", event => {
    event.preventDefault();
    const { left, top } = sheet.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY / 500), event.clientX - left, event.clientY - top);
  }, { passive: false });
  sheet.addEventListener("pointermove", event => {
    if (event.buttons & 1) pan(-event.movementX, -event.movementY);
  });
});
addEventListener("resize", () => { if (drawing.open && view.sizes.length) show(); });
