//! Prints the operators of each model in a folder after tract's optimization, in one line.
//! `forms.py` runs it:
//!
//!     cargo bench --bench forms -- FOLDER

use std::path::Path;
use std::{env, fs, io};

use unfold::onnx::Model;
use unfold::run::{Dims, Engine};

fn main() -> io::Result<()> {
    // Cargo adds `--bench`.
    let folder = env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let entries = fs::read_dir(folder.ok_or(io::ErrorKind::InvalidInput)?)?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    for path in paths.iter().filter(|path| {
        path.extension()
            .is_some_and(|extension| extension == "onnx")
    }) {
        println!(
            "form {}: {}",
            path.file_stem().unwrap_or_default().display(),
            told(path)
        );
    }
    Ok(())
}

/// The operators that run.
fn told(path: &Path) -> String {
    let engine = Model::open(path)
        .ok()
        .and_then(|model| Engine::load(&model, &Dims::default()).ok());
    let Some(engine) = engine else {
        return "cannot run it".to_owned();
    };
    let operators: Vec<String> = engine
        .operators()
        .into_iter()
        .map(|(name, count)| counted_name(name, count))
        .collect();
    // `Reduce<Sum>` is an open tag in Markdown.
    operators.join(", ").replace('<', "\\<")
}

fn counted_name(name: String, count: usize) -> String {
    if count > 1 {
        format!("{count} {name}")
    } else {
        name
    }
}
