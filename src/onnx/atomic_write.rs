//! Writes files into a temporary folder, and renames them when all of them are complete.
//!
//! Each save writes into its own folder `.unfold-…` next to the model. A list in this folder names
//! the data files that may become unused. The list is locked while the process lives. When the save
//! ends, all data files of the list to which no model refers are removed. If the process was
//! killed, the next process that saves into the folder of the model removes them.
//!
//! A model refers to its data file by name, so a save reserves this name before it writes: it
//! stores the name in a file in its own folder. Other saves then choose another name.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memmem;
use tempfile::TempPath;

/// The prefix of the name of a draft's folder.
const PREFIX: &str = ".unfold-";

/// The name of the list of data files that may become unused.
const LIST: &str = "list";
const MODEL: &str = "model";
const DATA: &str = "data";
const RESERVED: &str = "reserved";

/// The folders of all open saves of this process. The lock is held while a save creates, renames or
/// removes a file.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this value exists, no save of this process creates, renames or removes a file.
#[derive(Debug)]
#[must_use = "saves go on when it is dropped"]
pub(crate) struct Halt {
    _open: MutexGuard<'static, Vec<PathBuf>>,
}

/// Stops all saves because a signal ends the program, and removes the files that do not have their
/// final names yet.
///
/// Waits for a save that is renaming its files. Must not be called in the signal handler itself.
/// Instead, the handler wakes a thread, which calls this function and then ends the program.
pub(crate) fn halt_saves() -> Halt {
    let open = open();
    open.iter().for_each(|aside| remove(aside));
    Halt { _open: open }
}

/// The file that a write to `path` creates or replaces. Symbolic links are followed, and their
/// target need not exist.
///
/// # Errors
/// If the links form a cycle.
pub(crate) fn destination(path: &Path) -> io::Result<PathBuf> {
    // The maximum number of links that is followed, as in operating systems.
    const LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = folder_of(&path).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other("its links lead in a circle"))
}

/// The error of the system, without the name of the temporary folder that tempfile adds. The user
/// does not know that folder.
fn without_temporary_path(error: io::Error) -> io::Error {
    let text = error.to_string();
    let number = text.split("(os error ").nth(1);
    let number = number.and_then(|rest| rest.split(')').next()?.parse().ok());
    number.map_or(error, io::Error::from_raw_os_error)
}

/// A model, possibly with a data file, while it is written.
pub(crate) struct FileDraft {
    path: PathBuf,
    aside: PathBuf,
    /// The locked file that lists the names of the model and of its data files.
    list: File,
    /// The permissions of the replaced file; `None` if no file is replaced.
    permissions: Option<Permissions>,
}

impl FileDraft {
    /// Creates the folder of a draft, with an empty list.
    ///
    /// # Errors
    /// If the path is a cycle of links or not a regular file, or if the folder of the file is not
    /// writable.
    pub(super) fn new(path: &Path) -> io::Result<Self> {
        let path = destination(path)?;
        let replaced = path.metadata().ok();
        if replaced
            .as_ref()
            .is_some_and(|metadata| !metadata.is_file())
        {
            let reason = "it is no regular file, and is not replaced";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, reason));
        }
        let folder = folder_of(&path);
        let mut lock = FolderLock::new(folder);
        sweep(folder);
        let aside = tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder);
        let aside = aside.map_err(without_temporary_path)?;
        let list = File::create_new(aside.path().join(LIST))?;
        // If the file system has no locks, no other process can lock this list either, and so no
        // other process removes the folder.
        let _ = list.try_lock();
        let aside = aside.keep();
        lock.open.push(aside.clone());
        Ok(Self {
            path,
            aside,
            list,
            permissions: replaced.map(|metadata| metadata.permissions()),
        })
    }

    /// The final path of the model.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of the model and its data.
    pub(super) fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// Creates the empty file of the model.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn model(&self) -> io::Result<File> {
        self.create(MODEL)
    }

    /// Creates the empty data file.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(super) fn data(&self) -> io::Result<File> {
        self.create(DATA)
    }

    /// Creates a file with the permissions of the replaced model. If no model is replaced, the file
    /// has the permissions of any new file.
    fn create(&self, name: &str) -> io::Result<File> {
        let _open = open();
        let file = File::create_new(self.aside.join(name))?;
        self.permissions
            .clone()
            .map_or(Ok(()), |permissions| file.set_permissions(permissions))?;
        Ok(file)
    }

    /// The names of the data files in the folder that belong to this model, in the order of their
    /// numbers.
    pub(super) fn data_names(&self) -> Vec<String> {
        let Ok(model) = self.name() else {
            return Vec::new();
        };
        let entries = fs::read_dir(self.folder()).into_iter().flatten().flatten();
        let mut names: Vec<(u64, String)> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| Some((number(model, &name)?, name)))
            .collect();
        names.sort();
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// Reserves a name for a data file that no model refers to: `MODEL.data`, or `MODEL.n.data`.
    /// The number is above all numbers that exist in the folder or that other saves have reserved.
    ///
    /// # Errors
    /// If the name of the model is not UTF-8, or if the folder is not writable.
    pub(super) fn reserve_name(&self) -> io::Result<String> {
        let model = self.name()?;
        let _lock = self.lock_folder();
        let there = self
            .data_names()
            .into_iter()
            .chain(reserved_names(self.folder()));
        let last = there.filter_map(|name| number(model, &name)).max();
        let name = match last {
            None => format!("{model}.data"),
            Some(last) => format!("{model}.{}.data", last.saturating_add(1)),
        };
        fs::write(self.aside.join(RESERVED), &name)?;
        Ok(name)
    }

    /// Waits until no other draft renames files in the folder.
    pub(super) fn lock_folder(&self) -> FolderLock {
        FolderLock::new(self.folder())
    }

    /// Renames the data file to a name that must be free, and then renames the model, which
    /// completes the save. Afterwards an obsolete data file is removed, unless a model in the
    /// folder refers to it. Finally the lock is released.
    ///
    /// # Errors
    /// If the name of the data file is no longer free, or if the system refuses to rename a file.
    pub(super) fn commit(
        &mut self,
        _lock: FolderLock,
        data: Option<&str>,
        obsolete: Option<&str>,
    ) -> io::Result<()> {
        let names: Vec<&str> = data.into_iter().chain(obsolete).collect();
        let list = match names[..] {
            [] => String::new(),
            _ => [&[self.name()?], &names[..]].concat().join("\0"),
        };
        let result = self.take_names(data, &list);
        settle(self.folder(), &list);
        result
    }

    fn take_names(&mut self, data: Option<&str>, list: &str) -> io::Result<()> {
        self.list.write_all(list.as_bytes())?;
        if let Some(data) = data {
            let draft = TempPath::try_from_path(self.aside.join(DATA))?;
            let named = draft.persist_noclobber(self.folder().join(data));
            named.map_err(|failed| name_taken(failed.error, data))?;
        }
        fs::rename(self.aside.join(MODEL), &self.path)
    }

    /// Whether a data file still exists although the model does not refer to it.
    pub(super) fn is_left(&self, data: &str) -> bool {
        self.folder().join(data).is_file()
            && holds(&self.path, data.as_bytes()).is_ok_and(|holds| !holds)
    }

    /// The file name of the model, from which the name of its data file is derived.
    fn name(&self) -> io::Result<&str> {
        let name = self.path.file_name().and_then(|name| name.to_str());
        let reason = "a model with a data file must have a name in UTF-8";
        name.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, reason))
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        let mut open = open();
        remove(&self.aside);
        open.retain(|aside| *aside != self.aside);
    }
}

/// Writes a single file, and returns its path with links followed. Like a model, the file gets its
/// name only when it is complete.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut draft = FileDraft::new(path)?;
    let mut file = draft.model()?;
    file.write_all(bytes)?;
    draft.commit(draft.lock_folder(), None, None)?;
    Ok(draft.path.clone())
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// The number in the name of a data file of a model: 0 in `MODEL.data`, n in `MODEL.n.data`. `None`
/// for other names.
fn number(model: &str, data: &str) -> Option<u64> {
    match data.strip_prefix(model)?.strip_suffix(".data")? {
        "" => Some(0),
        middle => middle
            .strip_prefix('.')?
            .parse()
            .ok()
            .filter(|number| middle == format!(".{number}")),
    }
}

/// A lock on a folder. While it exists, no other save of any process creates, renames or removes
/// files in the folder.
pub(crate) struct FolderLock {
    open: MutexGuard<'static, Vec<PathBuf>>,
    /// `None` if the system cannot lock folders. Without this lock, saves of other processes do not
    /// wait.
    _folder: Option<File>,
}

impl FolderLock {
    fn new(folder: &Path) -> Self {
        let open = open();
        Self {
            open,
            _folder: locked(folder),
        }
    }
}

/// Opens and locks a folder; `None` if the system does not lock folders.
fn locked(folder: &Path) -> Option<File> {
    let folder = File::open(folder).ok()?;
    folder.lock().ok()?;
    Some(folder)
}

/// The names of data files that drafts in a folder have reserved.
fn reserved_names(folder: &Path) -> Vec<String> {
    let drafts = draft_folders(folder).into_iter();
    drafts
        .filter_map(|aside| fs::read_to_string(aside.join(RESERVED)).ok())
        .collect()
}

/// Replaces the error of a name that is already taken by an error that names the data file. It
/// occurs if a program that does not reserve names has created the file.
fn name_taken(error: io::Error, data: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => {
            let reason = format!(
                "another program has made {data} meanwhile, and it is not replaced: save again"
            );
            io::Error::new(io::ErrorKind::AlreadyExists, reason)
        }
        _ => error,
    }
}

/// The folders of all drafts in a folder, of this process and of others.
fn draft_folders(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(is_draft).map(|entry| entry.path()).collect()
}

fn is_draft(entry: &fs::DirEntry) -> bool {
    let is_named = entry
        .file_name()
        .to_str()
        .is_some_and(|name| name.starts_with(PREFIX));
    is_named && entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// Removes the temporary folders that processes left when they were killed.
fn sweep(folder: &Path) {
    for aside in draft_folders(folder) {
        match File::options()
            .read(true)
            .write(true)
            .open(aside.join(LIST))
        {
            Ok(mut list) => {
                if list.try_lock().is_err() {
                    continue;
                }
                let mut names = String::new();
                if list.read_to_string(&mut names).is_ok() {
                    settle(folder, &names);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => continue,
        }
        remove(&aside);
    }
}

/// Removes the folder of a draft with the files in it, the list last.
fn remove(aside: &Path) {
    // A file that does not exist is no error. A file that cannot be removed is left to the next
    // process.
    for name in [MODEL, DATA, RESERVED, LIST] {
        let _ = fs::remove_file(aside.join(name));
    }
    let _ = fs::remove_dir(aside);
}

/// Removes the data files of a list to which no model in the folder refers.
fn settle(folder: &Path, list: &str) {
    let mut names = list.split('\0');
    let model = names.next().unwrap_or_default();
    for data in names.filter(|data| number(model, data).is_some() && !data.contains(['/', '\\'])) {
        let file = folder.join(data);
        let is_file = file
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_file());
        if is_file && is_mentioned(folder, model, data).is_ok_and(|mentioned| !mentioned) {
            let _ = fs::remove_file(file);
        }
    }
}

/// Whether the name of a data file occurs in the file `model`, or in any other `.onnx` file of the
/// folder.
fn is_mentioned(folder: &Path, model: &str, data: &str) -> io::Result<bool> {
    let model = folder.join(model);
    if model.is_file() && holds(&model, data.as_bytes())? {
        return Ok(true);
    }
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_model = path
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"));
        if is_model && path.is_file() && holds(&path, data.as_bytes())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a file contains a byte string.
fn holds(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    const CHUNK: u64 = 1 << 20;
    let file = File::open(path)?;
    let mut window = Vec::new();
    loop {
        let read = (&file).take(CHUNK).read_to_end(&mut window)?;
        if memmem::find(&window, bytes).is_some() {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        // The last bytes of this chunk are kept, because a match may begin in them and end in the
        // next chunk.
        window.drain(..window.len().saturating_sub(bytes.len() - 1));
    }
}
