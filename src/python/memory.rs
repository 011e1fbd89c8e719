//! Returning freed memory to the system.

/// How many bytes more than before the C library may keep.
const ROOM: i32 = 1 << 23;

/// The C library's cache of Python bytes that were read and dropped.
pub struct Kept {
    before: u32,
}

impl Kept {
    pub fn now() -> Self {
        Self { before: free() }
    }

    /// Returns the cache once it has grown much: fresh memory costs time, since the system clears
    /// it.
    pub fn give_back(&mut self) {
        let now = free();
        let more = now.wrapping_sub(self.before) as i32;
        if more > ROOM {
            #[cfg(all(target_os = "linux", target_env = "gnu"))]
            // SAFETY: touches nothing but free memory.
            unsafe {
                libc::malloc_trim(0);
            }
            self.before = free();
        } else if more < 0 {
            self.before = now;
        }
    }
}

/// Bytes that the C library keeps, as far as it tells: the lower 32 bits of how many there are.
fn free() -> u32 {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: reads global statistics.
    return unsafe { libc::mallinfo() }.fordblks as u32;
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    return 0;
}

/// Gives back what this thread, and those that work for it, have freed.
pub fn give_back_freed() {
    rayon::broadcast(|_| collect());
    collect();
}

fn collect() {
    // SAFETY: touches nothing but free memory.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
