//! Output folders that a command creates, and removes if nothing was written.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// The created folders, the innermost first.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(vec![]);

/// When dropped, removes the folders that the command created and that are empty.
pub(super) struct MadeFolders;

impl Drop for MadeFolders {
    fn drop(&mut self) {
        remove_empty();
    }
}

/// Creates a folder and its missing parents.
pub(super) fn make(folder: &Path) -> Result<()> {
    let new: Vec<PathBuf> = folder
        .ancestors()
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
        .map(Path::to_owned)
        .collect();
    MADE.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .extend(new);
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())
}

/// Removes the created folders that are empty.
pub(super) fn remove_empty() {
    for folder in MADE
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .drain(..)
    {
        // The operating system keeps a folder that is not empty.
        let _ = fs::remove_dir(folder);
    }
}
