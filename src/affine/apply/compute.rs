//! Computes the elements of new tensors: small tensors at once, large tensors while they are
//! written.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rayon::prelude::*;

use crate::affine::materialize::{Edit, NewTensor};
use crate::affine::rounding::{Extremes, Rounding, extremes, float, foreseen};
use crate::analysis::Analysis;
use crate::hash::{HashMap, map_of};
use crate::ir::{Graph, ValueId};
use crate::onnx::external_data::Data;
use crate::onnx::proto::TensorProto;
use crate::onnx::tensor::{self, DataType};
use crate::platform::HAS_THREADS;
use crate::recipe::{Given, Promise, Recipe, prepare};
use crate::refusal::Reason;

/// A weight with more elements than this is computed only when the model is written. No pass reads
/// the elements of such a weight.
pub(super) const LARGE: usize = 1 << 14;

/// The number of new tensors that are computed in one batch. The constants that a batch reads are
/// dropped after the batch.
const BATCH: usize = 1 << 14;

/// The interval between two progress reports. With a report for each piece of work, the thread that
/// draws the progress would wake up too often.
const GLANCE: Duration = Duration::from_millis(20);

/// Whether the elements of large new tensors are checked to fit their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeCheck {
    /// They are computed once to check them.
    Done,
    /// They are not computed. For plans whose new tensors are computed afterwards anyway.
    Left,
}

/// The elements of a new tensor.
pub(super) enum Computed {
    /// The tensor with its elements. Used for small tensors, and for elements that are too costly
    /// to compute twice.
    Now(Box<TensorProto>),
    /// A promise to compute the elements when they are written. The elements are known to fit their
    /// type, unless this check is left out.
    Later(Arc<Promise>),
}

/// The computed elements of each new tensor of the edits, or the reason why they cannot be
/// computed, by the address of the tensor.
pub(super) type AllComputed = HashMap<*const NewTensor, Result<Computed, Reason>>;

/// Computes the new tensors of all edits on all cores.
pub(super) fn compute(
    edits: &[Edit],
    analysis: &Analysis,
    check: RangeCheck,
    progress: &dyn Fn(usize, usize),
) -> AllComputed {
    let tensors: Vec<&NewTensor> = edits
        .iter()
        .flat_map(|edit| edit.change.tensors())
        .collect();
    let mut computed: AllComputed = map_of(tensors.len());
    for batch in tensors.chunks(BATCH) {
        let before = computed.len();
        let progress = |done, all| progress(before + batch.len() * done / all, tensors.len());
        computed.extend(compute_batch(batch, analysis, check, &progress));
    }
    computed
}

/// Computes the new tensors of one batch.
fn compute_batch(
    batch: &[&NewTensor],
    analysis: &Analysis,
    check: RangeCheck,
    progress: &dyn Fn(usize, usize),
) -> AllComputed {
    let mut computed = AllComputed::default();
    let mut promises = vec![];
    let mut shared = HashMap::default();
    for &new in batch {
        match operands(new, analysis, &mut shared) {
            Ok(operands) => promises.push((new, promise(new, operands))),
            Err(reason) => drop(computed.insert(std::ptr::from_ref(new), Err(reason))),
        }
    }
    let (large, small): (Vec<_>, Vec<_>) = promises.into_iter().partition(|(new, _)| is_large(new));
    // Small tensors are computed first. Because the biases among them read the large weights, the
    // ranges of these weights are known afterwards.
    let now = by_all_cores(&small, &|(new, promise)| at_once(new, promise), &|done| {
        progress(done, batch.len())
    });
    for ((new, _), tensor) in small.iter().zip(now) {
        computed.insert(std::ptr::from_ref(*new), tensor);
    }
    let large_done = |done, all: usize| {
        let tensors = small.len() + large.len() * done / all.max(1);
        progress(tensors, batch.len());
    };
    let found = match check {
        RangeCheck::Done => ranges(&large, &large_done),
        RangeCheck::Left => vec![],
    };
    let mut found = found.into_iter();
    for (new, promise) in large {
        let tensor = match found.next() {
            Some(found) => looked_through(new, promise, found),
            None => Ok(Computed::Later(Arc::new(promise))),
        };
        computed.insert(std::ptr::from_ref(new), tensor);
    }
    computed
}

/// Looks at each part of large tensors, unless the extremes of the whole tensor are known.
fn ranges(large: &[(&NewTensor, Promise)], progress: &dyn Fn(usize, usize)) -> Vec<Vec<Looked>> {
    let promises: Vec<&Promise> = large.iter().map(|(_, promise)| promise).collect();
    prepare(&promises);
    let foreseen: Vec<_> = promises.iter().map(|promise| foreseen(promise)).collect();
    let mut parts: Vec<(usize, usize)> = vec![];
    for (tensor, promise) in promises.iter().enumerate() {
        if foreseen[tensor].is_none() {
            parts.extend((0..promise.parts()).map(|part| (tensor, part)));
        }
    }
    let looked = by_all_cores(
        &parts,
        &|&(tensor, part)| look(promises[tensor], part),
        &|done| progress(done, parts.len()),
    );
    let mut looked = looked.into_iter();
    let foreseen = foreseen.into_iter().zip(promises);
    foreseen
        .map(|(foreseen, promise)| match foreseen {
            Some(found) => vec![Ok((found, vec![]))],
            None => looked.by_ref().take(promise.parts()).collect(),
        })
        .collect()
}

/// Runs `piece` for each element of `work` on all cores and returns the results in order. Reports
/// progress meanwhile, if there are threads.
fn by_all_cores<W: Sync, R: Send>(
    work: &[W],
    piece: &(dyn Fn(&W) -> R + Sync),
    progress: &dyn Fn(usize),
) -> Vec<R> {
    if !HAS_THREADS {
        return work.iter().map(piece).collect();
    }
    let (done, (end, ended)) = (AtomicUsize::new(0), mpsc::channel::<()>());
    std::thread::scope(|scope| {
        let pieces = scope.spawn(|| {
            // Dropping `_end` tells the waiting thread that the work has ended, even if a piece
            // panics.
            let _end = end;
            let pieces = work.par_iter().map(|work| {
                let result = piece(work);
                done.fetch_add(1, Ordering::Relaxed);
                result
            });
            pieces.collect()
        });
        while ended.recv_timeout(GLANCE) == Err(RecvTimeoutError::Timeout) {
            progress(done.load(Ordering::Relaxed));
        }
        progress(work.len());
        pieces
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether the elements of a new tensor are computed only when they are written.
fn is_large(new: &NewTensor) -> bool {
    new.replaces.is_some() && new.recipe.len() > LARGE
}

/// The type of a new tensor, and the constants that its promise reads.
type Operands = (DataType, Vec<(Arc<str>, Given)>);

/// The constants that the formulas of a new tensor read. `shared` holds the constants that were
/// found so far, so that all tensors of a batch share them.
fn operands(
    new: &NewTensor,
    analysis: &Analysis,
    shared: &mut HashMap<ValueId, Given>,
) -> Result<Operands, Reason> {
    let data_type = float(new.data_type)?;
    let mut given = vec![];
    let mut recipes = vec![&new.recipe];
    if let Rounding::Weight(before, _) = &new.rounding {
        recipes.push(before);
    }
    for name in recipes.into_iter().flat_map(Recipe::constants) {
        let value = analysis.graph.value(name).ok_or(Reason::NotConstant)?;
        let constant = match shared.entry(value) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(
                analysis
                    .constants
                    .given(value)
                    .map_err(|refusal| refusal.reason)?,
            ),
        };
        given.push((name.clone(), constant.clone()));
    }
    Ok((data_type, given))
}

fn promise(new: &NewTensor, (data_type, given): Operands) -> Promise {
    Promise::new(&new.recipe, data_type, given)
}

/// Computes one new tensor, on all cores if it is large.
pub(super) fn alone(
    new: &NewTensor,
    analysis: &Analysis,
    check: RangeCheck,
) -> Result<Computed, Reason> {
    let promise = promise(new, operands(new, analysis, &mut HashMap::default())?);
    if !is_large(new) {
        return at_once(new, &promise);
    }
    if check == RangeCheck::Left {
        return Ok(Computed::Later(Arc::new(promise)));
    }
    let parts = (0..promise.parts())
        .into_par_iter()
        .map(|part| look(&promise, part))
        .collect();
    looked_through(new, promise, parts)
}

/// The extremes of a part of a large tensor, and the bytes of the part. The bytes are empty unless
/// the elements take long to compute.
type Looked = Result<(Extremes, Vec<u8>), Reason>;

fn look(promise: &Promise, part: usize) -> Looked {
    let mut bytes = vec![];
    let found = extremes(promise, part, promise.is_costly().then_some(&mut bytes))?;
    Ok((found, bytes))
}

/// Builds a large tensor from the results of all its parts, and checks that it fits its type.
fn looked_through(
    new: &NewTensor,
    promise: Promise,
    parts: Vec<Looked>,
) -> Result<Computed, Reason> {
    let (found, elements): (Vec<_>, Vec<_>) = parts
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?
        .into_iter()
        .unzip();
    new.rounding.check(&promise, found)?;
    if !promise.is_costly() {
        return Ok(Computed::Later(Arc::new(promise)));
    }
    let mut tensor = tensor::without_elements(promise.data_type(), promise.shape());
    tensor.raw_data = Some(elements.concat().into());
    Ok(Computed::Now(Box::new(tensor)))
}

fn at_once(new: &NewTensor, promise: &Promise) -> Result<Computed, Reason> {
    let numbers = promise.numbers().map_err(|refusal| refusal.reason)?;
    let tensor = new.rounding.store(promise.data_type(), &numbers, &|name| {
        promise.constant(name)
    })?;
    Ok(Computed::Now(Box::new(tensor)))
}

impl Computed {
    pub(super) fn tensor(self, graph: &Graph) -> TensorProto {
        match self {
            Computed::Now(tensor) => *tensor,
            Computed::Later(promise) => {
                let mut tensor = tensor::without_elements(promise.data_type(), promise.shape());
                graph
                    .model()
                    .externals()
                    .hold(&mut tensor, Data::Made(promise));
                tensor
            }
        }
    }
}
