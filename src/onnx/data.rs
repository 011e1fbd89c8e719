//! The bytes of a tensor: in memory, in a file, or computed on demand.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use bytes::Bytes;

/// The number of bytes of one read while data is copied.
pub(super) const PIECE: usize = 1 << 20;

/// The data, or the reason why it cannot be read.
pub(crate) type Found<T> = Result<T, String>;

/// Resolves the external data of a model that is in memory.
///
/// ```
/// use std::io;
/// use bytes::Bytes;
/// use unfold::onnx::Resolver;
///
/// /// One data file, held in memory.
/// #[derive(Debug)]
/// struct Weights(Bytes);
///
/// impl Resolver for Weights {
///     fn length(&self, location: &str) -> io::Result<u64> {
///         match location {
///             "model.onnx.data" => Ok(self.0.len() as u64),
///             _ => Err(io::ErrorKind::NotFound.into()),
///         }
///     }
///     fn read(&self, _: &str, offset: u64, length: usize) -> io::Result<Bytes> {
///         Ok(self.0.slice(offset as usize..offset as usize + length))
///     }
/// }
/// ```
pub trait Resolver: Debug + Send + Sync {
    /// The number of bytes at a location.
    ///
    /// # Errors
    /// If the location does not exist.
    fn length(&self, location: &str) -> io::Result<u64>;

    /// Reads `length` bytes of a location, starting at `offset`. unfold requests only bytes within
    /// the length of the location. A result with another length counts as a failed read.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    fn read(&self, location: &str, offset: u64, length: usize) -> io::Result<Bytes>;

    /// The number of bytes, at least one, to read first, before unfold knows whether it needs all
    /// `length` bytes.
    fn ahead(&self, _location: &str, _offset: u64, length: usize) -> usize {
        length
    }
}

/// Bytes that are computed on demand. If a range is computed again, the bytes are the same.
pub(crate) trait Make: Debug + Send + Sync {
    /// The number of bytes.
    fn length(&self) -> usize;

    /// Computes the bytes of `range` into `into`, which has the same length.
    ///
    /// # Errors
    /// If the data from which the bytes are computed cannot be read.
    fn make(&self, range: Range<usize>, into: &mut [u8]) -> Found<()>;

    /// The offsets at which the bytes are best cut into parts for computation, in ascending order.
    /// The first offset is 0.
    fn cuts(&self) -> Vec<usize>;
}

/// A byte string in memory, in a file, or computed on demand.
#[derive(Debug, Clone)]
pub(crate) enum Data {
    /// In memory.
    Here(Bytes),
    /// A range of a file or of a resolver's data.
    There(Arc<DataFile>, Range<u64>),
    /// Computed on demand.
    Made(Arc<dyn Make>),
}

impl Data {
    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Data::Here(bytes) => bytes.len(),
            Data::There(_, range) => (range.end - range.start) as usize,
            Data::Made(made) => made.length(),
        }
    }

    /// Reads all bytes. Bytes in memory are not copied.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn all(&self) -> Found<Bytes> {
        self.read(0..self.len())
    }

    /// Reads a range of the bytes, which must not exceed their length.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn read(&self, range: Range<usize>) -> Found<Bytes> {
        if let Some(bytes) = self.lent(&range) {
            return bytes;
        }
        let mut bytes = Vec::new();
        bytes
            .try_reserve_exact(range.len())
            .map_err(|source| source.to_string())?;
        bytes.resize(range.len(), 0);
        self.read_into(range.start, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Returns a range of the bytes without copying or computing them; `None` if they are in a
    /// file, or are computed on demand.
    fn lent(&self, range: &Range<usize>) -> Option<Found<Bytes>> {
        match self {
            Data::Here(bytes) => Some(Ok(bytes.slice(range.clone()))),
            Data::There(file, within) => file.lent(within.start + range.start as u64, range.len()),
            Data::Made(_) => None,
        }
    }

    /// Passes all bytes to `take`, part by part. At most one part is in memory.
    pub(super) fn hand_on(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let mut buffer = vec![];
        self.parts()
            .into_iter()
            .try_for_each(|part| match self.lent(&part) {
                Some(bytes) => take(&bytes.map_err(io::Error::other)?),
                None => {
                    buffer.resize(part.len(), 0);
                    self.read_into(part.start, &mut buffer)
                        .map_err(io::Error::other)?;
                    take(&buffer)
                }
            })
    }

    /// Fills `into` with the bytes starting at `at`.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn read_into(&self, at: usize, into: &mut [u8]) -> Found<()> {
        match self {
            Data::Here(bytes) => into.copy_from_slice(&bytes[at..at + into.len()]),
            Data::There(file, within) => file.read_into(within.start + at as u64, into)?,
            Data::Made(made) => made.make(at..at + into.len(), into)?,
        }
        Ok(())
    }

    /// Whether both byte strings are equal. At most one part of each is in memory at a time.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub(crate) fn same(&self, others: &Data) -> Found<bool> {
        if self.len() != others.len() {
            return Ok(false);
        }
        for part in self.parts() {
            if self.read(part.clone())? != others.read(part)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The parts in which the bytes are best read, in order.
    pub(super) fn parts(&self) -> Vec<Range<usize>> {
        let cuts = match self {
            Data::Made(made) => made.cuts(),
            _ => (0..self.len()).step_by(PIECE).collect(),
        };
        let ends = cuts.iter().copied().skip(1).chain([self.len()]);
        cuts.iter()
            .copied()
            .zip(ends)
            .map(|(start, end)| start..end)
            .collect()
    }
}

/// A file with data of tensors, or a resolver instead of a file.
#[derive(Debug)]
pub(crate) struct DataFile {
    /// The location by which tensors refer to the file.
    location: String,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    /// The file, and its length and modification time when it was opened.
    File(File, u64, Option<SystemTime>),
    /// The resolver, and the reason of its first failure.
    Resolver(Arc<dyn Resolver>, OnceLock<String>),
}

impl DataFile {
    pub(super) fn open(location: &str, file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let origin = Origin::File(file, metadata.len(), metadata.modified().ok());
        Ok(Self {
            location: location.to_owned(),
            origin,
        })
    }

    pub(super) fn resolved(location: &str, resolver: Arc<dyn Resolver>) -> Self {
        Self {
            location: location.to_owned(),
            origin: Origin::Resolver(resolver, OnceLock::new()),
        }
    }

    /// The file; `None` if it is a resolver.
    pub(super) fn file(&self) -> Option<&File> {
        match &self.origin {
            Origin::File(file, ..) => Some(file),
            Origin::Resolver(..) => None,
        }
    }

    /// The current number of bytes.
    pub(super) fn length(&self) -> Found<u64> {
        let length = match &self.origin {
            Origin::File(file, ..) => file.metadata().map(|metadata| metadata.len()),
            Origin::Resolver(resolver, _) => resolver.length(&self.location),
        };
        length.map_err(|source| self.unreadable(source))
    }

    /// Whether the file has changed since it was opened.
    pub(super) fn has_changed(&self) -> bool {
        match &self.origin {
            Origin::File(file, length, modified) => {
                let now = file.metadata();
                now.is_ok_and(|now| now.len() != *length || now.modified().ok() != *modified)
            }
            Origin::Resolver(..) => false,
        }
    }

    /// Reads bytes starting at `offset`, at most `length`. A resolver may choose a smaller number.
    pub(super) fn ahead(self: &Arc<Self>, offset: u64, length: usize) -> Found<Bytes> {
        let length = match &self.origin {
            Origin::File(..) => length,
            Origin::Resolver(resolver, _) => resolver
                .ahead(&self.location, offset, length)
                .clamp(1, length),
        };
        self.read(offset, length)
    }

    pub(super) fn read(self: &Arc<Self>, offset: u64, length: usize) -> Found<Bytes> {
        Data::There(self.clone(), offset..offset + length as u64).all()
    }

    fn read_into(&self, offset: u64, into: &mut [u8]) -> Found<()> {
        let read = match &self.origin {
            Origin::File(file, ..) => read_at(file, into, offset),
            Origin::Resolver(resolver, refused) => {
                let bytes = self.ask(resolver.as_ref(), refused, offset, into.len())?;
                into.copy_from_slice(&bytes);
                return Ok(());
            }
        };
        read.map_err(|source| self.unread(source))
    }

    /// Returns a range of the bytes if they come from a resolver; `None` if they are in a file.
    fn lent(&self, offset: u64, length: usize) -> Option<Found<Bytes>> {
        match &self.origin {
            Origin::File(..) => None,
            Origin::Resolver(resolver, refused) => {
                Some(self.ask(resolver.as_ref(), refused, offset, length))
            }
        }
    }

    /// Requests `length` bytes from the resolver, and checks that the result has this length.
    fn ask(
        &self,
        resolver: &dyn Resolver,
        refused: &OnceLock<String>,
        offset: u64,
        length: usize,
    ) -> Found<Bytes> {
        let read = match resolver.read(&self.location, offset, length) {
            Ok(bytes) if bytes.len() != length => {
                let given = bytes.len();
                Err(io::Error::other(format!(
                    "the resolver gave {given} bytes, {length} were asked for"
                )))
            }
            read => read,
        };
        let read = read.map_err(|source| self.unread(source));
        if let Err(reason) = &read {
            refused.get_or_init(|| reason.clone());
        }
        read
    }

    /// The reason of the resolver's first failure; `None` if it has not failed, or if the data is
    /// in a file.
    pub(super) fn refused(&self) -> Option<&str> {
        match &self.origin {
            Origin::File(..) => None,
            Origin::Resolver(_, refused) => refused.get().map(String::as_str),
        }
    }

    fn unread(&self, source: io::Error) -> String {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                format!("`{}` was cut short while it was read", self.location)
            }
            _ => self.unreadable(source),
        }
    }

    pub(super) fn unreadable(&self, source: io::Error) -> String {
        format!("`{}` cannot be read: {source}", self.location)
    }
}

/// Fills a buffer with the bytes of a file at an offset.
#[cfg(unix)]
pub(super) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Fills a buffer with the bytes of a file at an offset.
#[cfg(windows)]
pub(super) fn read_at(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => (bytes, offset) = (&mut bytes[read..], offset + read as u64),
        }
    }
    Ok(())
}

/// Fails, because the target has no files.
#[cfg(not(any(unix, windows)))]
pub(super) fn read_at(_: &File, _: &mut [u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sets the length of a file, and allocates its blocks if the system can. This makes writing
/// faster, and a full disk is detected before anything is written.
#[cfg(target_os = "linux")]
pub(super) fn reserve(file: &File, length: u64) -> io::Result<()> {
    use rustix::io::Errno;
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, length) {
        // The system allocates no blocks for length 0, and some file systems cannot allocate
        // blocks.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(length),
        reserved => Ok(reserved?),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn reserve(file: &File, length: u64) -> io::Result<()> {
    file.set_len(length)
}

/// Writes bytes into a file at an offset.
#[cfg(unix)]
pub(super) fn write_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

/// Writes bytes into a file at an offset.
#[cfg(windows)]
pub(super) fn write_at(file: &File, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        (bytes, offset) = (&bytes[written..], offset + written as u64);
    }
    Ok(())
}

/// Fails, because the target has no files.
#[cfg(not(any(unix, windows)))]
pub(super) fn write_at(_: &File, _: &[u8], _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
