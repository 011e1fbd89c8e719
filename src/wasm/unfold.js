// The library: calls the functions of the module. `index.js`, `node.js` and the page name the module.

/** The module, its bytes or its address, or a function that returns one of them. */
let source;

/** The compiled module, once the first call has begun. */
let compiled;

/** Names the module for all later calls. */
export function load(other) {
  source = other;
  compiled = undefined;
}

/** Folds a model. */
export async function fuse(model, { prove = true, page, ...options } = {}) {
  const request = { options: snakeCase(options), prove, page };
  const { report, bytes } = await call("wasm_fuse", encoded(request), model);
  return { ...report, model: report.changed ? bytes : model };
}

/** Lists the sites of a model and their outcomes, and writes a page about them. */
export async function inspect(model, { name = "model", ...options } = {}) {
  const request = { options: snakeCase(options), page: name };
  const { report } = await call("wasm_fuse", encoded(request), model);
  return { sites: report.sites, page: report.page };
}

/** Proves that two models are the same function. */
export async function prove(original, other) {
  const { report } = await call("wasm_prove", original, other);
  return report;
}

/** Compiles the module. */
async function compile() {
  const given = typeof source === "function" ? await source() : source;
  if (given instanceof WebAssembly.Module) {
    return given;
  }
  if (given instanceof URL || typeof given === "string") {
    return WebAssembly.compileStreaming(fetch(given));
  }
  return WebAssembly.compile(given);
}

/** Calls a function of the module on two buffers. Each call has an instance of its own, and so returns all memory. */
async function call(name, first, second) {
  compiled ??= compile();
  const { exports } = await WebAssembly.instantiate(await compiled);
  const given = [first, second].flatMap((bytes) => placed(exports, bytes));
  return answer(exports, run(exports[name], given));
}

/** Copies bytes into an instance, and returns their address and their length. */
function placed(exports, bytes) {
  if (!(bytes instanceof Uint8Array)) {
    throw new TypeError("a model is a Uint8Array");
  }
  const address = exports.wasm_allocate(bytes.length) >>> 0;
  if (address === 0) {
    throw new Error(`${bytes.length} bytes do not fit into the memory of WebAssembly`);
  }
  new Uint8Array(exports.memory.buffer, address, bytes.length).set(bytes);
  return [address, bytes.length];
}

/** Runs a function. It fails if the memory or the stack ends. */
function run(wanted, given) {
  try {
    return wanted(...given) >>> 0;
  } catch (cause) {
    throw new Error(`the memory or the stack of WebAssembly does not suffice: ${cause.message}`, { cause });
  }
}

/** Reads the reply of a function. */
function answer({ memory }, address) {
  const [failed, text, textLength, model, modelLength] = new Uint32Array(memory.buffer, address, 5);
  const words = new TextDecoder().decode(new Uint8Array(memory.buffer, text, textLength));
  if (failed) {
    throw new Error(words);
  }
  return { report: JSON.parse(words), bytes: new Uint8Array(memory.buffer, model, modelLength).slice() };
}

/** Encodes a value as JSON. */
function encoded(value) {
  return new TextEncoder().encode(JSON.stringify(value));
}

/** The options with the names that the library has for them, such as `max_growth` for `maxGrowth`. */
function snakeCase(options) {
  const named = Object.entries(options).map(([name, value]) => [name.replace(/[A-Z]/g, underscored), value]);
  return Object.fromEntries(named);
}

/** The letter in lower case after an underscore. */
function underscored(letter) {
  return `_${letter.toLowerCase()}`;
}
