//! Limits the number of models that are processed at once to those that fit into memory.

use std::fs;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The memory in bytes that a model takes besides its weights (`BESIDES`), and the number of copies
/// of its weights in memory (`TIMES`): the original and the folded weights, and a copy of each in
/// tract.
const BESIDES: u64 = 64 << 20;
const TIMES: u64 = 4;

/// The available memory that is assumed if the operating system does not report it, in bytes.
const USUAL: u64 = 4 << 30;

/// A budget of memory. A task that needs more than the whole budget runs alone.
pub(super) struct Room {
    bytes: u64,
    taken: Mutex<Taken>,
    returned: Condvar,
}

#[derive(Default)]
struct Taken {
    bytes: u64,
    places: usize,
}

/// A reservation of a part of the budget, which ends when this value is dropped.
pub(super) struct Seat<'r> {
    room: &'r Room,
    bytes: u64,
}

impl Room {
    /// A budget of half of the memory that is available now.
    pub(super) fn of_this_machine() -> Self {
        Self::new(available().unwrap_or(USUAL) / 2)
    }

    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            taken: Mutex::default(),
            returned: Condvar::new(),
        }
    }

    /// Waits until there is room for a model whose files have `file_bytes` bytes.
    pub(super) fn take(&self, file_bytes: u64) -> Seat<'_> {
        let bytes = file_bytes.saturating_mul(TIMES).saturating_add(BESIDES);
        let full =
            |taken: &mut Taken| taken.places > 0 && taken.bytes.saturating_add(bytes) > self.bytes;
        let waited = self.returned.wait_while(self.taken(), full);
        let mut taken = waited.unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes;
        taken.places += 1;
        Seat { room: self, bytes }
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        taken.bytes -= self.bytes;
        taken.places -= 1;
        self.room.returned.notify_all();
    }
}

/// The available memory of the machine in bytes, limited by the memory of the container. `None` if
/// the operating system does not report it.
fn available() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let limit = number("/sys/fs/cgroup/memory.max").unwrap_or(u64::MAX);
    let used = number("/sys/fs/cgroup/memory.current").unwrap_or_default();
    Some((kilobytes << 10).min(limit.saturating_sub(used)))
}

/// The number in a file of the operating system.
fn number(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The largest number of models of this size that were admitted at once in a test run.
    fn at_once(room: &Room, file_bytes: u64) -> usize {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let _place = room.take(file_bytes);
                    most.fetch_max(now.fetch_add(1, SeqCst) + 1, SeqCst);
                    thread::sleep(Duration::from_millis(20));
                    now.fetch_sub(1, SeqCst);
                });
            }
        });
        most.into_inner()
    }

    #[test]
    fn models_are_admitted_by_memory_and_at_least_one() {
        let room = Room::new(2 * (BESIDES + TIMES * 1000));
        assert!(at_once(&room, 1000) <= 2);
        assert_eq!(at_once(&room, 1001), 1);
        assert_eq!(at_once(&room, u64::MAX), 1);
        let taken = room.taken();
        assert_eq!((taken.bytes, taken.places), (0, 0));
    }
}
