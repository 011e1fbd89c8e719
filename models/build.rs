//! Lists the topologies of the zoo. A new file in the folder is a new network.

use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("models/zoo");
    println!("cargo::rerun-if-changed=models/zoo");
    let mut entries = String::new();
    let mut files: Vec<_> = fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    files.sort_by_key(|file| file.file_name());
    for file in files {
        if let Some(name) = file
            .file_name()
            .to_str()
            .and_then(|name| name.strip_suffix(".onnx.gz"))
        {
            // The path starts at the folder of the compiled package, wherever this script runs.
            let path = format!("/models/zoo/{name}.onnx.gz");
            entries += &format!(
                "({name:?}, include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?}))),\n"
            );
        }
    }
    let list = Path::new(&env::var("OUT_DIR")?).join("zoo.rs");
    Ok(fs::write(
        list,
        format!("static TOPOLOGIES: &[(&str, &[u8])] = &[\n{entries}];\n"),
    )?)
}
