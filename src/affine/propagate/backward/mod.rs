//! Backward propagation of one affine, to the producers of the value to which it is applied.
//!
//! A value with other readers stops the affine, unless all readers need the same affine. Both
//! branches of a rotary embedding need the same scalar, and both ends of a roll need the same
//! affine of channels. Such a value waits until the needs of all its readers are known. Readers
//! that need no affine may compensate for the affine that other readers need. Then a residual
//! stream changes its basis.

mod readers;
mod search;
mod state;
mod whole;

use crate::affine::Affine;
use crate::affine::item::Items;
use crate::affine::propagate::backward::readers::is_shared;
use crate::affine::propagate::backward::state::{BackwardPropagation, Met};
use crate::affine::propagate::forward;
use crate::affine::propagate::overlay::GraphOverlay;
use crate::affine::propagate::propagation::{Compensation, Propagation};
use crate::affine::recognize::Part;
use crate::ir::{NodeId, ValueId};
use crate::refusal::{Reason, Refusal};

/// The treatment of values with several readers, and of constants, during a search.
#[derive(Clone, Copy, Default)]
struct Mode {
    /// Whether a value that several nodes read waits until all of them need the same affine.
    waits_for_readers: bool,
    /// The nodes that may need an affine of one part of a value while other readers take the other
    /// parts.
    partial_readers: PartialReaders,
    /// Whether a scalar propagates past a constant with other readers instead of folding into it.
    spares_shared_constants: bool,
    /// Whether readers that need no affine compensate for the affine that other readers need.
    compensates: bool,
}

impl Mode {
    /// Each value waits until all its readers need the same affine.
    const WAITING: Mode = Mode {
        waits_for_readers: true,
        partial_readers: PartialReaders::Together,
        spares_shared_constants: false,
        compensates: false,
    };

    /// Like [`Mode::WAITING`], but readers that need no affine compensate for the affine that other
    /// readers need.
    const COMPENSATING: Mode = Mode {
        compensates: true,
        ..Mode::WAITING
    };

    /// Like [`Mode::WAITING`], but each reader may need an affine of its part of a value.
    const APART: Mode = Mode {
        partial_readers: PartialReaders::Apart,
        ..Mode::WAITING
    };

    /// The modes in which a scalar propagates to the producers of one input of a node, in the order
    /// in which they are tried.
    const OF_SCALARS: [Mode; 5] = [
        Mode {
            waits_for_readers: false,
            ..Mode::WAITING
        },
        Mode::WAITING,
        Mode::APART,
        Mode {
            spares_shared_constants: true,
            ..Mode::WAITING
        },
        Mode {
            spares_shared_constants: true,
            ..Mode::APART
        },
    ];
}

/// Which readers of a part of a value may need an affine of only that part, if all other readers
/// take other parts. If a reader may not, all readers of the value must need the same affine of the
/// whole value.
#[derive(Clone, Copy, Default, PartialEq)]
enum PartialReaders {
    /// No reader.
    #[default]
    Together,
    /// A reader of a value, if no other reader of the value is upstream of the start of the search.
    Alone,
    /// Every reader.
    Apart,
}

/// The start of a search: an affine that is needed on the input of an item's part.
#[derive(Clone, Copy)]
struct Start<'d, 'a> {
    overlay: &'d GraphOverlay<'a>,
    items: &'d Items<'d>,
    item: usize,
    affine: &'d Affine,
}

impl Start<'_, '_> {
    /// Propagates the affine in one mode. Also returns which kinds of readers outside of the path
    /// the search met.
    fn attempt(&self, mode: Mode) -> (Result<Propagation, Refusal>, Met) {
        let mut search = BackwardPropagation::new(self.overlay, self.items, self.item, mode);
        let found = search.start_at_part(self.affine);
        (found, search.met())
    }

    /// Finds the first propagation that `accepts` allows, in the modes in which a value waits until
    /// each of its readers needs the same affine. For a scalar, this includes the modes in which
    /// readers of parts need affines of their own.
    fn waiting_for_readers(
        &self,
        spares_shared_constants: bool,
        accepts: impl Fn(&Propagation) -> bool,
    ) -> Option<Propagation> {
        let all = [
            PartialReaders::Together,
            PartialReaders::Alone,
            PartialReaders::Apart,
        ];
        let modes = if self.affine.is_number() { 3 } else { 1 };
        let mut searched_origin = false;
        for &partial_readers in &all[..modes] {
            // If `Alone` never looked up the nodes upstream of the start, `Apart` gives the same
            // result and is skipped.
            if partial_readers == PartialReaders::Apart && !searched_origin {
                continue;
            }
            let (found, met) = self.attempt(Mode {
                partial_readers,
                spares_shared_constants,
                ..Mode::WAITING
            });
            searched_origin = met.searched_origin;
            if let Some(propagation) = found.ok().filter(&accepts) {
                return Some(propagation);
            }
        }
        None
    }

    /// Finds a propagation in which a value waits until all its readers need the same affine. A
    /// scalar may also propagate past constants with other readers instead of folding into them.
    fn shared_by_readers(&self) -> Option<Propagation> {
        let found = self.waiting_for_readers(false, |_| true);
        // If a rotary embedding covers some tokens and the other tokens are scaled separately, its
        // tables must stay unchanged.
        if found.is_none() && self.affine.is_number() {
            return self.waiting_for_readers(true, |_| true);
        }
        found
    }
}

/// Propagates an affine backward from the input of an item's part. The affine is that of the part,
/// or only its scale or shift.
///
/// # Errors
/// A refusal at the node or value that has another reader, or that cannot absorb or pass the
/// affine.
pub(crate) fn backward(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let part = &items.all[item].part;
    if part.nodes.is_empty() {
        return Err(inside_a_node(overlay, part));
    }
    let start = Start {
        overlay,
        items,
        item,
        affine,
    };
    let (found, met) = start.attempt(Mode::default());
    let is_number = affine.is_number();
    let better = match &found {
        Err(_) if met.reader_of_other_parts || (met.affected_reader && is_number) => {
            start.shared_by_readers()
        }
        // The tables of a rotary embedding multiply both queries and keys, so they should stay
        // unchanged.
        Ok(propagation) if is_number && folds_into_shared(overlay, propagation) => {
            start.waiting_for_readers(true, |other| !folds_into_shared(overlay, other))
        }
        _ => None,
    };
    better.map_or(found, Ok)
}

/// Like [`backward`], but always allows values with several readers that all need the same affine.
/// An example is a value that is read together with its mean.
pub(crate) fn by_all(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Option<Propagation> {
    if items.all[item].part.nodes.is_empty() {
        return None;
    }
    let start = Start {
        overlay,
        items,
        item,
        affine,
    };
    start.waiting_for_readers(false, |_| true)
}

/// The refusal to propagate the parameters of a node backward. The node applies them after its own
/// computation, so no producer can absorb them.
fn inside_a_node(overlay: &GraphOverlay, part: &Part) -> Refusal {
    let graph = overlay.graph;
    match graph.producer(part.output) {
        Some((node, _)) => {
            let reason = Reason::NotLinear(graph.domain_op(node).1.into());
            Refusal::new(reason, graph.name(node))
        }
        None => {
            let reason = Reason::NotLinear(String::new());
            Refusal::new(reason, graph.value_name(part.output))
        }
    }
}

/// Whether a propagation folds into a node that multiplies by a constant array with other readers.
fn folds_into_shared(overlay: &GraphOverlay, propagation: &Propagation) -> bool {
    let mut folds = propagation.folds.iter();
    folds.any(|fold| is_shared(overlay, fold.node))
}

/// Propagates an affine backward from the part's input, past values whose other readers compensate
/// for it.
///
/// This removes the last normalizer of a residual stream that ends at an output. All writers of the
/// stream are multiplied by the scale of the normalizer, and all readers of the stream divide by
/// that scale.
///
/// # Errors
/// The errors of [`backward`] and [`forward::compensate`].
pub(crate) fn returning(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    affine: &Affine,
) -> Result<Propagation, Refusal> {
    let mut search = BackwardPropagation::new(overlay, items, item, Mode::COMPENSATING);
    let mut propagation = search.start_at_part(affine)?;
    let compensations = search.into_compensations();
    forward::compensate(overlay, items, item, &mut propagation, &compensations)?;
    // Compensation may need affines from producers, for example on class tokens that are
    // concatenated to a compensated value.
    let first = propagation.wanted.len();
    let factors = std::mem::take(&mut propagation.factors);
    let wants = std::mem::take(&mut propagation.wants);
    for want in wants.into_iter().chain(factors) {
        wanted(overlay, items, item, &mut propagation, want)?;
    }
    if let Some(value) = wanted_twice(overlay, &propagation, first) {
        let name = overlay.graph.value_name(value);
        return Err(Refusal::new(Reason::ResidualStream, name));
    }
    propagation
        .wants
        .extend(compensations.iter().filter_map(first_demand));
    propagation.in_one_basis(overlay)
}

/// Finds the first value that is not constant and is in `propagation.wanted` both before and after
/// index `place`.
fn wanted_twice(
    overlay: &GraphOverlay,
    propagation: &Propagation,
    place: usize,
) -> Option<ValueId> {
    let (before, after) = propagation.wanted.split_at(place);
    let mut twice = after.iter().filter(|value| before.contains(value));
    twice
        .find(|value| !overlay.constants.is_constant(**value))
        .copied()
}

/// Returns the affine of a compensated value, and the first input that needs it. `None` if no input
/// needs it, or if the affine is not finite.
fn first_demand(compensation: &Compensation) -> Option<(NodeId, usize, Affine)> {
    let &(node, slot) = compensation.wanted.first()?;
    Some((node, slot, compensation.inverse.inverse()?))
}

/// Propagates backward, from an input of a node, an affine that a forward propagation needs there.
///
/// # Errors
/// The errors of [`backward`].
pub(crate) fn wanted(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    (node, slot, affine): (NodeId, usize, Affine),
) -> Result<(), Refusal> {
    BackwardPropagation::new(overlay, items, item, Mode::default()).inputs(
        propagation,
        node,
        &[(slot, affine)],
        0,
    )
}

/// Like [`wanted`], but a scalar also passes a value whose other readers need it too, such as both
/// halves of a rotary embedding, or take other parts, such as the queries' part of a product that
/// computes queries, keys and values.
///
/// # Errors
/// The first error of [`backward`], if no mode succeeds.
pub(crate) fn wanted_by_all(
    overlay: &GraphOverlay,
    items: &Items,
    item: usize,
    propagation: &mut Propagation,
    (node, slot, affine): (NodeId, usize, Affine),
) -> Result<(), Refusal> {
    let way = [(slot, affine)];
    let modes: &[Mode] = match way[0].1.is_number() {
        true => &Mode::OF_SCALARS,
        false => &[Mode::default()],
    };
    let mut first = None;
    for &mode in modes {
        let mut found = propagation.clone();
        let mut search = BackwardPropagation::new(overlay, items, item, mode);
        match search.start_at_inputs(&mut found, node, &way) {
            Ok(()) => {
                *propagation = found;
                return Ok(());
            }
            Err(refusal) => first = first.or(Some(refusal)),
        }
    }
    first.map_or(Ok(()), Err)
}
