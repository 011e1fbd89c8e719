//! A `build.rs` that folds a model at compile time, so that the program contains the result.
//!
//! `Cargo.toml` lists `unfold-onnx` below `[build-dependencies]`. The program includes the result by
//! `static MODEL: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/fused.onnx"));`.

use std::error::Error;
use std::path::PathBuf;

use unfold::onnx::Model;

/// The path of the model, relative to the folder of `Cargo.toml`.
const MODEL: &str = "models/digits/un-dynamo.onnx";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={MODEL}");
    let fused = unfold::fuse(&Model::open(MODEL)?, &Default::default())?;
    for site in fused.plan.sites.iter().filter(|site| !site.is_folded()) {
        println!("cargo::warning={} ({}) stays", site.name, site.kind.name);
    }
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo runs this")?);
    fused.model.save(folder.join("fused.onnx"))?;
    Ok(())
}
