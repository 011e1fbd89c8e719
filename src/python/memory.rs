//! Returns freed memory to the operating system.

/// The growth of the C library's cache, in bytes, above which the cache is returned to the
/// operating system.
const ROOM: i32 = 1 << 23;

/// The C library's cache of freed Python objects.
pub(super) struct Kept {
    before: u32,
}

impl Kept {
    pub(super) fn now() -> Self {
        Self { before: free() }
    }

    /// Returns the C library's cache to the operating system if it has grown by more than `ROOM`. A
    /// smaller cache is kept, because the operating system would have to clear fresh memory.
    pub(super) fn give_back(&mut self) {
        let now = free();
        let more = now.wrapping_sub(self.before) as i32;
        if more > ROOM {
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            // SAFETY: only touches free memory.
            unsafe {
                libc::malloc_trim(0);
            }
            self.before = free();
        } else if more < 0 {
            self.before = now;
        }
    }
}

/// The number of bytes in the C library's cache, modulo 2^32.
fn free() -> u32 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: only reads global statistics.
    return unsafe { libc::mallinfo() }.fordblks as u32;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    return 0;
}

/// Returns the memory that this thread and the worker threads have freed to the operating system.
pub(super) fn give_back_freed() {
    rayon::broadcast(|_| collect());
    collect();
}

fn collect() {
    // SAFETY: only touches free memory.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
