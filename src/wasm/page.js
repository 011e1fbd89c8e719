// The script of the page: a worker folds the model that is dropped, and proves the result.
(() => {
  const element = (id) => document.getElementById(id);
  const text = (id) => element(id).textContent;

  /** The compiled module, once the first model was dropped. */
  let compiled;

  /** The worker of the last model. */
  let worker;

  /** Compiles the module, which the page holds compressed. */
  async function compile() {
    const packed = Uint8Array.from(atob(text("module").trim()), (letter) => letter.charCodeAt(0));
    const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return WebAssembly.compile(await new Response(unpacked).arrayBuffer());
  }

  /** Starts a worker, and ends the one of an earlier model, which then answers no more. */
  function restart() {
    const script = new Blob([text("library"), text("worker")], { type: "text/javascript" });
    worker?.terminate();
    worker = new Worker(URL.createObjectURL(script));
    return worker;
  }

  /** Calls a function of the library in a worker. */
  function ask(worker, wanted, ...given) {
    return new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => (data.failure ? reject(new Error(data.failure)) : resolve(data.result));
      worker.onerror = ({ message }) => reject(new Error(message));
      worker.postMessage({ wanted, given });
    });
  }

  /** Tells what is being done, or what failed. */
  function tell(line, failed = false) {
    element("status").textContent = line;
    element("status").classList.toggle("failed", failed);
  }

  /** Takes the result of an earlier model away. */
  function clear() {
    element("save").hidden = true;
    element("page").hidden = true;
  }

  /** The seconds since a time. */
  function since(begin) {
    return `${((performance.now() - begin) / 1000).toFixed(1)} s`;
  }

  /** Shows the page about a model. */
  function show(page) {
    element("page").srcdoc = page;
    element("page").hidden = false;
  }

  /** Offers a model for download. */
  function offer(model, name) {
    const save = element("save");
    URL.revokeObjectURL(save.href);
    save.href = URL.createObjectURL(new Blob([model], { type: "application/octet-stream" }));
    save.download = name;
    save.textContent = `Save ${name}`;
    save.hidden = false;
  }

  /** The verdict on the result in a sentence. */
  function sentence({ verdict, at, reason }) {
    switch (verdict) {
      case "proved":
        return "The result is proved to be the same function.";
      case "undecided":
        return `It could not be decided whether the result is the same function: ${reason}.`;
      default:
        throw new Error(`the result is not the same function, at ${at}: ${reason}`);
    }
  }

  /** Folds a model and shows its page. Then proves the result and offers it. */
  async function fold(file) {
    const begin = performance.now();
    const own = restart();
    clear();
    tell("Loading…");
    compiled ??= compile();
    await ask(own, "load", await compiled);
    const model = new Uint8Array(await file.arrayBuffer());
    tell("Folding…");
    const options = { target: element("target").value, prove: false, page: file.name };
    const fused = await ask(own, "fuse", model, options);
    show(fused.page);
    if (!fused.changed) {
      return tell(`Nothing folds (${since(begin)}).`);
    }
    tell(`Folded (${since(begin)}). Proving…`);
    const verdict = element("prove").checked ? sentence(await ask(own, "prove", model, fused.model)) : "";
    offer(fused.model, file.name.replace(/(\.onnx)?$/, ".fused.onnx"));
    tell(`Folded. ${verdict} (${since(begin)})`);
  }

  /** Folds the first of some files, and tells if this fails. */
  function begin([file]) {
    if (file) {
      fold(file).catch(({ message }) => tell(message, true));
    }
  }

  element("model").addEventListener("change", ({ target }) => begin(target.files));
  addEventListener("dragover", (event) => {
    event.preventDefault();
    element("drop").classList.add("over");
  });
  addEventListener("dragleave", () => element("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    element("drop").classList.remove("over");
    begin(event.dataTransfer.files);
  });
})();
