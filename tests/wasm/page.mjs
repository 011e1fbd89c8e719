// Tests the page in headless Chromium: a model that is dropped on it becomes the bytes that the command writes, is
// proved, and can be saved. The page asks the network for nothing.
//     node tests/wasm/page.mjs target/wasm/unfold.html target/release/unfold [MODEL...]

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const [page, command, ...others] = process.argv.slice(2);
const work = mkdtempSync(join(tmpdir(), "unfold-"));

/** A headless browser, which is spoken to through pipes. */
class Browser {
  #answers = new Map();
  #rest = "";

  constructor() {
    const options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", `--user-data-dir=${work}/profile`];
    this.process = spawn(process.env.CHROME ?? "chromium", options, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.process.stdio[4].on("data", (data) => this.#receive(data));
    this.requests = [];
  }

  /** Takes the messages of the browser, each of which ends with a zero. */
  #receive(data) {
    const messages = (this.#rest + data).split("\0");
    this.#rest = messages.pop();
    for (const message of messages.map((message) => JSON.parse(message))) {
      if (message.method === "Network.requestWillBeSent") {
        this.requests.push(message.params.request.url);
      }
      this.#answers.get(message.id)?.(message);
    }
  }

  /** Sends a command, and waits for its result. */
  async send(method, params = {}) {
    const id = this.#answers.size + 1;
    const answer = new Promise((resolve) => this.#answers.set(id, resolve));
    this.process.stdio[3].write(`${JSON.stringify({ id, method, params, sessionId: this.session })}\0`);
    const { result, error } = await answer;
    assert.ok(!error, `${method}: ${error?.message}`);
    return result;
  }

  /** Opens a page. */
  async open(url) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    await this.send("Browser.setDownloadBehavior", { behavior: "allow", downloadPath: work });
    this.session = sessionId;
    await this.send("Network.enable");
    await this.send("Page.navigate", { url });
  }

  /** Ends the browser. */
  async close() {
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    this.process.kill();
    await ended;
  }

  /** The value of an expression in the page. */
  async value(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true });
    assert.ok(!exceptionDetails, JSON.stringify(exceptionDetails));
    return result.value;
  }

  /** Waits until an expression is true. */
  async until(expression) {
    while (!(await this.value(expression))) {
      await sleep(50);
    }
  }

  /** Drops a file on the page. */
  async drop(file) {
    const data = { items: [], files: [resolve(file)], dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) {
      await this.send("Input.dispatchDragEvent", { type, x: 100, y: 200, data });
    }
  }
}

/** The bytes that the command writes. */
function expected(path) {
  const result = join(work, "expected.onnx");
  execFileSync(command, ["fuse", path, "-o", result, "--quiet", "--verify", "off"]);
  return readFileSync(result);
}

/** The bytes of a file, once it is saved. */
async function saved(path) {
  while (!existsSync(path)) {
    await sleep(50);
  }
  return readFileSync(path);
}

const STATUS = `document.getElementById("status").textContent`;
const IDLE = `!/^$|…/.test(${STATUS})`;

/** Drops a model, saves the result, and compares it with that of the command. */
async function check(browser, path) {
  await browser.drop(path);
  await browser.until(`${STATUS} !== ""`);
  await browser.until(IDLE);
  const status = await browser.value(STATUS);
  assert.match(status, /^Folded\. The result is proved to be the same function\./);
  const result = join(work, basename(path).replace(".onnx", ".fused.onnx"));
  await browser.value(`document.getElementById("save").click()`);
  assert.ok((await saved(result)).equals(expected(path)), `${path}: other bytes`);
  const page = await browser.value(`document.getElementById("page").srcdoc`);
  assert.ok(page.includes(`<title>${basename(path)} - unfold inspect</title>`));
  console.log(`${path}: ${status}`);
}

const browser = new Browser();
try {
  await browser.open(pathToFileURL(resolve(page)).href);
  await browser.until(`document.readyState === "complete"`);
  for (const path of ["models/digits/un-dynamo.onnx", "models/digits/ln-legacy.onnx", ...others]) {
    await check(browser, path);
  }
  await browser.drop("README.md");
  await browser.until(`document.getElementById("status").classList.contains("failed")`);
  assert.match(await browser.value(STATUS), /is not an ONNX model/);
  assert.ok(await browser.value(`document.getElementById("save").hidden`));
  await assert.rejects(browser.value(`fetch("https://example.com")`), /Failed to fetch/);
  const outside = browser.requests.filter((url) => !/^(file|blob|data|about):/.test(url));
  assert.deepEqual(outside.filter((url) => url !== "https://example.com/"), []);
} finally {
  await browser.close();
  rmSync(work, { recursive: true, maxRetries: 10 });
}
