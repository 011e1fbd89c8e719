//! Compares the public API of the library with a snapshot, so that a review sees each change.
//!
//! The sources are parsed, so that the test needs no other toolchain. After an intended change,
//! `INSTA_UPDATE=always cargo test --release --test api` accepts it.

mod describe;
mod sources;

use describe::{Description, describe};
use sources::Sources;

/// The maximum number of public items, without the messages of [`WIRE_FORMAT`].
const MOST: usize = 120;

/// The module of the messages of ONNX, whose names are those of the format.
const WIRE_FORMAT: &str = "onnx::proto";

/// Some lines that the description must have. An empty description would otherwise pass.
const SOME: [&str; 5] = [
    "fn fuse(model: &Model, options: &FuseOptions) -> Result<Fused>",
    "struct onnx::Model",
    "    fn open(path: impl AsRef<Path>) -> Result<Self>",
    "    proto: ModelProto",
    "enum prove::Proof",
];

#[test]
fn public_api_is_as_accepted() {
    let Description {
        lines,
        items,
        modules,
    } = describe(&Sources::read());
    let count = format!("{items} types, traits and functions in {modules} modules");
    let text = format!("{count}\n\n{}", lines.join("\n"));
    for line in SOME {
        assert!(lines.iter().any(|found| found == line), "{line}\n{text}");
    }
    assert!(items <= MOST, "{items} public items are more than {MOST}");
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description(
        "The public API differs. If that is intended: INSTA_UPDATE=always cargo test --release --test api",
    );
    settings.bind(|| insta::assert_snapshot!("public_api", text));
}
