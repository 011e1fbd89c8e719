//! What a process has back for other things.

/// Gives back what this thread, those that work for it, and Python have freed.
pub fn give_back_freed() {
    // SAFETY: touches nothing but free memory.
    let collect = || unsafe { libmimalloc_sys::mi_collect(true) };
    rayon::broadcast(|_| collect());
    collect();
    // What the C library keeps of Python's bytes, which were read and dropped.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: as above.
    unsafe {
        libc::malloc_trim(0);
    }
}
