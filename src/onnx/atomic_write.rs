//! Files that are written aside, and take their names when all of them are complete.
//!
//! A save writes into a folder of its own beside the model, `.unfold-…`. A list in it names the
//! data files that may become unused; it is locked while the process lives. However the save ends,
//! data files of the list that no model refers to are removed: by this process, or, if it was
//! killed, by the next process that saves into the folder.
//!
//! A model refers to its data file by name. A save therefore reserves this name before it writes, by
//! a file in its own folder, and other saves choose another name.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use memchr::memmem;
use tempfile::TempPath;

/// How the name of the folder of a draft begins.
const PREFIX: &str = ".unfold-";

/// The name of the list.
const LIST: &str = "list";
const MODEL: &str = "model";
const DATA: &str = "data";
const RESERVED: &str = "reserved";

/// The folders of all open saves of this process. The lock is held while a file of a save is made,
/// named or removed.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn open() -> MutexGuard<'static, Vec<PathBuf>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// No save makes, names or removes a file while this is kept.
#[derive(Debug)]
#[must_use = "saves go on when it is dropped"]
pub struct Halt {
    _open: MutexGuard<'static, Vec<PathBuf>>,
}

/// Stops saves when a signal ends the program: removes files that have no final name yet.
///
/// One that is giving files their names is waited for. Not to be called in the signal handler itself, but by a
/// thread that the handler wakes, which then ends the program.
pub fn halt_saves() -> Halt {
    let open = open();
    open.iter().for_each(|aside| remove(aside));
    Halt { _open: open }
}

/// The file that writing to a path makes or replaces: where its links lead, though nothing may be there yet.
///
/// # Errors
/// Where links lead in a circle.
pub fn destination(path: &Path) -> io::Result<PathBuf> {
    // As many as the systems follow.
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

/// A model, and perhaps a data file, that are being written.
pub(crate) struct FileDraft {
    path: PathBuf,
    aside: PathBuf,
    /// The names of the model and of data files, locked.
    list: File,
    /// The permissions of the replaced file.
    permissions: Option<Permissions>,
}

impl FileDraft {
    /// A draft of nothing yet.
    ///
    /// # Errors
    /// If the path is a cycle of links or no regular file, or if its folder is not writable.
    pub fn new(path: &Path) -> io::Result<Self> {
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
        let aside = tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder)?;
        let list = File::create_new(aside.path().join(LIST))?;
        // Where files cannot be locked, nobody can lock this one to sweep it up either.
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

    /// Where the model will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder that the model and its data will be in.
    pub fn folder(&self) -> &Path {
        folder_of(&self.path)
    }

    /// The model, empty.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn model(&self) -> io::Result<File> {
        self.create(MODEL)
    }

    /// The data file, empty.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn data(&self) -> io::Result<File> {
        self.create(DATA)
    }

    /// A file with the permissions that the replaced model has, or that any new file would have.
    fn create(&self, name: &str) -> io::Result<File> {
        let _open = open();
        let file = File::create_new(self.aside.join(name))?;
        self.permissions
            .clone()
            .map_or(Ok(()), |permissions| file.set_permissions(permissions))?;
        Ok(file)
    }

    /// The names of data files of this model in the folder, by their number.
    pub fn data_names(&self) -> Vec<String> {
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

    /// Reserves a name for a data file that no model refers to: `MODEL.data`, or `MODEL.n.data` with
    /// a number above those in the folder and those that other saves have reserved.
    ///
    /// # Errors
    /// Where the name of the model is not UTF-8, and where nothing can be written beside it.
    pub fn reserve_name(&self) -> io::Result<String> {
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

    /// Waits until no other draft names files of the folder.
    pub fn lock_folder(&self) -> FolderLock {
        FolderLock::new(self.folder())
    }

    /// Lets the files take their names: the data file one that is free, then the model its own, which is the
    /// moment at which the save happens. An obsolete data file is removed after it, unless a model in the folder
    /// refers to it. The lock ends with it.
    ///
    /// # Errors
    /// Where the name of the data file is not free any more, or the system does not let a file take its name.
    pub fn commit(
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

    /// Whether a data file is still there, and the model does not refer to it.
    pub fn is_left(&self, data: &str) -> bool {
        self.folder().join(data).is_file()
            && holds(&self.path, data.as_bytes()).is_ok_and(|holds| !holds)
    }

    /// The file name of the model, as tensors refer to its data by it.
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

/// Writes a file that stands by itself: complete before it takes its name, as models are.
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

/// The number in the name of a data file of a model: 0 in `MODEL.data`, n in `MODEL.n.data`.
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

/// While it is kept, no other save, of this process or another, makes, names or removes files of a
/// folder.
pub(crate) struct FolderLock {
    open: MutexGuard<'static, Vec<PathBuf>>,
    /// Other processes do not wait where folders cannot be locked.
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

/// A folder, locked; `None` where the system does not lock folders.
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

/// An error that names the data file, where a program that reserves no names has made one of this name.
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

/// The folders of drafts in a folder.
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

/// Removes the drafts of processes that have ended.
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

/// Removes the folder of a draft, its list last, and nothing that is no draft's.
fn remove(aside: &Path) {
    // A file that is missing or cannot be removed is left to the next process.
    for name in [MODEL, DATA, RESERVED, LIST] {
        let _ = fs::remove_file(aside.join(name));
    }
    let _ = fs::remove_dir(aside);
}

/// Removes those data files of a list that no model in the folder refers to.
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

/// Whether the name of a data file occurs in a model, or in any other `.onnx` file of the folder.
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

/// Whether some bytes occur in a file.
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
        // The end of the chunk may be the beginning of a match that ends in the next chunk.
        window.drain(..window.len().saturating_sub(bytes.len() - 1));
    }
}
