//! Measures the memory of a run in three ways: live bytes in the order of the graph, bytes of the
//! heap, and the resident set.
//!
//! | | what it is | changes from run to run |
//! |---|---|---|
//! | [`live`] | the sizes of the values that are live at each step, by their shapes | no |
//! | [`heap`] | the bytes that the run requests from the allocator | hardly |
//! | [`resident_peak`] | the memory of the whole process, including weights | yes |

use std::alloc::{GlobalAlloc, Layout};
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use tract_core::internal::{TDim, TractResult, TypedModel};
use tract_core::ops::konst::Const;

use crate::run::Engine;

/// The bytes of the values that are live while a node of tract's graph runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Live {
    /// The index of the node in [`Engine::graph`].
    pub node: usize,
    /// The bytes of all values that are live while the node runs: its inputs, its outputs, and
    /// values that later nodes read.
    pub bytes: u64,
}

/// The live bytes while each node runs, in the order of the graph. Weights are not counted.
///
/// The order is tract's `eval_order`, which depends only on the graph: it visits the graph from the
/// outputs, and puts each node after its inputs. tract may run the nodes in another order, because
/// it starts ready nodes by their index and delays nodes that wait for a constant. So one
/// additional scalar constant may change the order of other nodes, and therefore the peak of the
/// [`heap`].
///
/// Inputs and outputs are both counted, even if tract runs an operator in place. So the live bytes
/// at a node may exceed the bytes on the heap by one value.
pub(super) fn live(engine: &Engine) -> Vec<Live> {
    // An error is impossible: tract ordered this graph when it planned it, and all shapes are
    // concrete.
    let steps = usage(engine.graph()).unwrap_or_default();
    let live = steps.iter().map(|(node, size)| Live {
        node: *node,
        bytes: size.as_i64().map_or(0, |bytes| bytes.max(0) as u64),
    });
    live.collect()
}

/// Lists the nodes in the order of the graph, each with the bytes of the values that are live while
/// it runs.
fn usage(graph: &TypedModel) -> TractResult<Vec<(usize, TDim)>> {
    let order: Vec<usize> = graph
        .eval_order()?
        .into_iter()
        .filter(|&node| !graph.node(node).op_is::<Const>())
        .collect();
    let usage = graph.eval_tmp_memory_usage(&order, |node| !node.op_is::<Const>())?;
    Ok(usage.into_iter().collect())
}

/// The allocations during a measured call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Heap {
    /// The peak of the allocated bytes, minus the bytes that were allocated at the start.
    pub peak: u64,
    /// The total size of all requested blocks, in bytes.
    pub allocated: u64,
}

/// Measures the bytes that `work` requests from the allocator on all threads. Without the
/// [`CountingAllocator`], the heap is `None`. Two simultaneous measurements disturb each other.
pub(crate) fn heap<T>(work: impl FnOnce() -> T) -> (T, Option<Heap>) {
    HELD.store(0, Relaxed);
    PEAK.store(0, Relaxed);
    ALLOCATED.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
    // A test allocation shows whether the allocator counts.
    drop(std::hint::black_box(Box::new(0_u8)));
    let counted = ALLOCATED.swap(0, Relaxed) > 0;
    let result = work();
    COUNTING.store(false, Relaxed);
    let heap = Heap {
        peak: PEAK.load(Relaxed).max(0) as u64,
        allocated: ALLOCATED.load(Relaxed),
    };
    (result, counted.then_some(heap))
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static HELD: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// An allocator that counts while [`bench()`](crate::bench::bench) measures the heap.
///
/// ```
/// use std::alloc::System;
///
/// use unfold::bench::CountingAllocator;
///
/// #[global_allocator]
/// static ALLOCATOR: CountingAllocator<System> = CountingAllocator(System);
/// ```
#[derive(Debug)]
pub struct CountingAllocator<A>(pub A);

impl<A> CountingAllocator<A> {
    fn grow(bytes: usize) {
        if COUNTING.load(Relaxed) {
            ALLOCATED.fetch_add(bytes as u64, Relaxed);
            let held = HELD.fetch_add(bytes as i64, Relaxed) + bytes as i64;
            PEAK.fetch_max(held, Relaxed);
        }
    }

    fn shrink(bytes: usize) {
        if COUNTING.load(Relaxed) {
            HELD.fetch_sub(bytes as i64, Relaxed);
        }
    }
}

// SAFETY: every request is passed to the wrapped allocator unchanged. Counting neither allocates
// nor panics.
unsafe impl<A: GlobalAlloc> GlobalAlloc for CountingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::grow(layout.size());
        // SAFETY: the caller guarantees what the wrapped allocator requires.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::grow(layout.size());
        // SAFETY: as above.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::shrink(layout.size());
        Self::grow(size);
        // SAFETY: as above.
        unsafe { self.0.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::shrink(layout.size());
        // SAFETY: as above.
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// Resets the peak of the resident set of this process.
///
/// # Errors
/// If the operating system does not support it.
pub(super) fn forget_resident_peak() -> io::Result<()> {
    fs::write("/proc/self/clear_refs", "5")
}

/// The peak of the resident set of this process in bytes, since its start or since
/// [`forget_resident_peak`].
///
/// `None` if the operating system does not report it.
pub(super) fn resident_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Dims;
    use crate::run::testing::affine;

    #[test]
    fn live_bytes_follow_from_shapes() {
        let engine = Engine::load(
            &affine([2.0; 3], [1.0; 3]),
            &"n=100".parse::<Dims>().unwrap(),
        )
        .unwrap();
        let steps = live(&engine);
        let nodes = engine
            .graph()
            .nodes()
            .iter()
            .filter(|node| !node.op_is::<Const>());
        assert_eq!(steps.len(), nodes.count());
        // One input and one output of 100 × 3 floats.
        assert_eq!(
            steps.iter().map(|step| step.bytes).max(),
            Some(2 * 100 * 3 * 4)
        );
    }

    #[test]
    fn heap_is_unmeasured_with_another_allocator() {
        assert_eq!(heap(|| 7), (7, None));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn resident_peak_is_known_on_linux() {
        assert!(resident_peak().unwrap() > 1 << 20);
    }
}
