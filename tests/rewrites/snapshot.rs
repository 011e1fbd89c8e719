//! Snapshots of rewrites: the first graph that a test changes, before and after, in ONNX's textual
//! syntax.
//!
//! A snapshot shows all edges, attributes and small constants of both graphs. After an intended
//! change, `cargo insta review` shows each difference, and `INSTA_UPDATE=always cargo test
//! --release --test rewrites` accepts all.
//! shows each difference; `INSTA_UPDATE=always cargo test --release --test rewrites` accepts all.

use std::cell::Cell;
use std::thread;

use unfold::onnx::{Model, PrintedElements};

/// A snapshot shows the elements of tensors up to this size.
const ELEMENTS: PrintedElements = PrintedElements::AtMost(16);

/// The maximum number of nodes of a graph in a snapshot. Larger graphs test limits.
const MAX_NODES: usize = 60;

thread_local! {
    /// Whether the test of this thread has compared its snapshot.
    static IS_TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// Compares the first change of the running test with `snapshots/<test>.snap`.
pub fn check(before: &Model, after: &Model) {
    let is_large = before.graph().node.len() > MAX_NODES;
    if is_large || before.proto == after.proto || IS_TAKEN.replace(true) {
        return;
    }
    let thread = thread::current();
    // If one thread runs all tests, it does not have the name of a test.
    let Some(test) = thread.name().filter(|name| *name != "main") else {
        return;
    };
    let [before, after] = [before, after].map(|model| model.to_text(ELEMENTS).unwrap());
    let name = test.replace("::", "__");
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, format!("{before}\n=>\n\n{after}")));
}
