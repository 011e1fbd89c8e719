//! Moves data into files: in parts, on all cores, and without passing through memory if the
//! operating system supports that.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;

use super::data::{Data, PIECE, write_at};

/// The number of bytes that one thread copies at a time.
const PART: usize = 16 * PIECE;

/// The number of bytes that pass through memory at a time. They fit into the cache of a core.
const BUFFER: usize = PIECE / 4;

/// Data, and its place in a file.
pub(super) struct Transfer<'f> {
    pub file: &'f File,
    pub offset: u64,
    pub data: Data,
}

/// Moves all data. Each thread reads one buffer at a time, so that the memory depends only on the
/// number of threads.
pub(super) fn transfer(work: Vec<Transfer>) -> io::Result<()> {
    let parts = work.iter().flat_map(|transfer| {
        let parts = match &transfer.data {
            Data::Made(_) => transfer.data.parts(),
            data => (0..data.len())
                .step_by(PART)
                .map(|at| at..data.len().min(at + PART))
                .collect(),
        };
        parts.into_iter().map(move |part| (transfer, part))
    });
    let parts: Vec<_> = parts.collect();
    // The threads take the parts in the order of the files. Each thread has its own buffer.
    let next = AtomicUsize::new(0);
    let threads = (0..rayon::current_num_threads())
        .into_par_iter()
        .with_max_len(1);
    threads.try_for_each(|_| {
        let mut buffer = vec![];
        while let Some((transfer, part)) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let moved = transfer.part(part.clone(), &mut buffer);
            // After an error, the other threads stop too.
            moved.inspect_err(|_| next.store(parts.len(), Ordering::Relaxed))?;
        }
        Ok(())
    })
}

impl Transfer<'_> {
    fn part(&self, part: Range<usize>, buffer: &mut Vec<u8>) -> io::Result<()> {
        let mut at = part.start;
        if let Data::There(source, within) = &self.data
            && let Some(from) = source.file()
            && can_share(self.file)
        {
            at += copy(
                from,
                within.start + at as u64,
                self.file,
                self.offset + at as u64,
                part.len(),
            );
        }
        while at < part.end {
            let end = part.end.min(at + BUFFER);
            buffer.resize(end - at, 0);
            self.data.read_into(at, buffer).map_err(io::Error::other)?;
            write_at(self.file, buffer, self.offset + at as u64)?;
            at = end;
        }
        Ok(())
    }
}

/// Whether the file system of a file may copy data faster than reading and writing the data would.
/// False for ext4 and tmpfs: these copy page by page, which is slower than reading and writing
/// whole buffers.
#[cfg(target_os = "linux")]
fn can_share(file: &File) -> bool {
    const EXT4: u64 = 0xEF53;
    const TMPFS: u64 = 0x0102_1994;
    rustix::fs::fstatfs(file).is_ok_and(|system| ![EXT4, TMPFS].contains(&(system.f_type as u64)))
}

#[cfg(not(target_os = "linux"))]
fn can_share(_: &File) -> bool {
    false
}

/// Lets the operating system copy as many bytes as it can. Returns the number of copied bytes.
#[cfg(target_os = "linux")]
fn copy(from: &File, mut offset: u64, to: &File, mut place: u64, length: usize) -> usize {
    let mut left = length;
    while left > 0 {
        match rustix::fs::copy_file_range(from, Some(&mut offset), to, Some(&mut place), left) {
            Ok(0) | Err(_) => break,
            Ok(copied) => left -= copied,
        }
    }
    length - left
}

#[cfg(not(target_os = "linux"))]
fn copy(_: &File, _: u64, _: &File, _: u64, _: usize) -> usize {
    0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::onnx::data::read_at;

    /// Tests `copy` directly, because other tests run it only on file systems that can share data.
    #[test]
    fn copied_range_is_in_the_target_file() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let bytes: Vec<u8> = (0..100_000).map(|index| (index % 251) as u8).collect();
        write_at(&from, &bytes, 0).unwrap();
        to.set_len(200_000).unwrap();
        let copied = copy(&from, 1000, &to, 3000, 90_000);
        let mut there = vec![0; 200_000];
        read_at(&to, &mut there, 0).unwrap();
        assert!(copied <= 90_000 && there[3000..3000 + copied] == bytes[1000..1000 + copied]);
        assert!(
            there[..3000]
                .iter()
                .chain(&there[3000 + copied..])
                .all(|&byte| byte == 0)
        );
    }
}
