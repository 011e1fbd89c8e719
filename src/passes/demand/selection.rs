//! Selections of places along one axis of a value: Gather, Slice, Split, GatherND.

use std::collections::BTreeSet;

use super::per_sample;
use super::places::{PlaceSet, Selection};
use crate::analysis::Analysis;
use crate::ir::axes::axis as counted;
use crate::ir::builder::{Maker, int};
use crate::ir::regions::region_path;
use crate::ir::{NodeId, Reader, ValueId};
use crate::ops::axes::{AxisRead, reads};

/// The largest extent of an axis along which the selected places are listed.
const LISTED: usize = 1 << 12;

/// The selections that read a value. All of them select along the same axis.
#[derive(Debug)]
pub(super) struct Group {
    pub value: ValueId,
    pub axis: usize,
    pub selections: Vec<Selection>,
    /// The places that at least one selection takes.
    pub places: PlaceSet,
    /// The number of these places.
    pub count: usize,
}

impl Group {
    pub(super) fn first(&self) -> NodeId {
        self.selections[0].nodes[0]
    }
}

/// Finds the values that only selections and Shapes read. Together, the selections must take at
/// most half of the places, or one place along an axis of unknown extent.
pub(super) fn groups(analysis: &Analysis) -> Vec<Group> {
    let graph = &analysis.graph;
    let mut seen = BTreeSet::new();
    let mut groups = vec![];
    for &node in graph.order() {
        let Some(value) = graph
            .input(node, 0)
            .filter(|_| is_selection(analysis, node))
        else {
            continue;
        };
        if !analysis.constants.is_constant(value) && seen.insert(value) {
            groups.extend(group(analysis, value));
        }
    }
    groups
}

fn is_selection(analysis: &Analysis, node: NodeId) -> bool {
    ["Gather", "Slice", "Split"]
        .iter()
        .any(|op| analysis.graph.is(node, op))
        || per_sample::selection(analysis, node).is_some()
}

fn group(analysis: &Analysis, value: ValueId) -> Option<Group> {
    let graph = &analysis.graph;
    let mut found: Option<(usize, Vec<Selection>)> = None;
    for reader in graph.readers(value) {
        let &Reader::Node { node, input: 0 } = reader else {
            return None;
        };
        if graph.is(node, "Shape") {
            continue;
        }
        let (axis, selections) = selections(analysis, node)?;
        let (first, all) = found.get_or_insert((axis, vec![]));
        if *first != axis {
            return None;
        }
        all.extend(selections);
    }
    let (axis, selections) = found?;
    let mut ways = selections
        .iter()
        .flat_map(|other| &other.nodes)
        .map(|&node| region_path(graph.node(node)));
    let first = ways.next()?;
    if ways.any(|other| other != first) {
        return None;
    }
    let places = union(&selections)?;
    let count = match &places {
        PlaceSet::Listed(places) => places.len(),
        _ => 1,
    };
    let is_less = match analysis.facts.extent(value, axis) {
        Some(whole) => count > 0 && 2 * count <= whole,
        None => count == 1,
    };
    is_less.then_some(Group {
        value,
        axis,
        selections,
        places,
        count,
    })
}

/// The places that at least one selection takes. `None` if the selections differ and their places
/// are not listed.
fn union(selections: &[Selection]) -> Option<PlaceSet> {
    let first = &selections[0].places;
    if selections.iter().all(|other| other.places == *first) {
        return Some(first.clone());
    }
    let mut all = BTreeSet::new();
    for selection in selections {
        let PlaceSet::Listed(places) = &selection.places else {
            return None;
        };
        all.extend(places.iter().copied());
    }
    Some(PlaceSet::Listed(all.into_iter().collect()))
}

/// The axis of a selecting node, and the selection of each output with a reader. `None` if the axis
/// or the places of an output are unknown.
fn selections(analysis: &Analysis, node: NodeId) -> Option<(usize, Vec<Selection>)> {
    let graph = &analysis.graph;
    match graph.op(node)? {
        "Gather" => gathered(analysis, node),
        "Slice" | "Split" => cut(analysis, node),
        _ => per_sample::selection(analysis, node).map(|(axis, found)| (axis, vec![found])),
    }
}

fn gathered(analysis: &Analysis, node: NodeId) -> Option<(usize, Vec<Selection>)> {
    let at = analysis.at(node);
    at.only_attributes(&["axis"]).ok()?;
    let axis = counted(at.attr("axis", 0).ok()?, at.rank(0).ok()?).ok()?;
    let (index, wide) = (at.input(1).ok()?, at.rank(1).ok()?);
    let whole = at.extent(0, axis).ok();
    let is_one = wide == 0 || (wide == 1 && at.extent(1, 0) == Ok(1));
    let listed = if at.is_constant(1) {
        Some(at.ints(1).ok()??)
    } else {
        None
    };
    let places = match (listed, whole) {
        (Some(listed), Some(whole)) if wide < 2 => {
            let places = listed.iter().map(|&place| counted(place, whole).ok());
            PlaceSet::Listed(places.collect::<Option<_>>()?)
        }
        (Some(listed), None) if is_one => PlaceSet::Gathered(*listed.first()?),
        (None, _) if is_one => PlaceSet::Computed(index),
        _ => return None,
    };
    let output = analysis.graph.output(node, 0)?;
    Some((
        axis,
        vec![Selection {
            nodes: vec![node],
            output,
            places,
            drops_axis: wide == 0,
        }],
    ))
}

/// The axis that a Slice or a Split cuts, and the selection of each output with a reader. `None` if
/// a Slice cuts several axes, or if the places of an output are unknown.
fn cut(analysis: &Analysis, node: NodeId) -> Option<(usize, Vec<Selection>)> {
    let (graph, at) = (&analysis.graph, analysis.at(node));
    let rank = at.rank(0).ok()?;
    let axis = match graph.is(node, "Split") {
        true => counted(at.attr("axis", 0).ok()?, rank).ok()?,
        false => sliced_axis(analysis, node, rank)?,
    };
    let mut all = vec![];
    for (slot, output) in graph.outputs(node).iter().enumerate() {
        let Some(output) = output.filter(|&output| !graph.readers(output).is_empty()) else {
            continue;
        };
        let places = match listed(analysis, node, slot, axis) {
            Some(places) => places,
            None => sliced(analysis, node, output, axis)?,
        };
        all.push(Selection {
            nodes: vec![node],
            output,
            places,
            drops_axis: false,
        });
    }
    Some((axis, all))
}

/// The axis that a Slice cuts. `None` if it cuts several axes.
fn sliced_axis(analysis: &Analysis, node: NodeId, rank: usize) -> Option<usize> {
    let at = analysis.at(node);
    match at.list("axes").ok()? {
        Some(axes) => match axes[..] {
            [one] => counted(one, rank).ok(),
            _ => None,
        },
        None => (at.list("starts").ok()??.len() == 1).then_some(0),
    }
}

fn listed(analysis: &Analysis, node: NodeId, slot: usize, axis: usize) -> Option<PlaceSet> {
    let at = analysis.at(node);
    at.extent(0, axis).ok().filter(|&whole| whole <= LISTED)?;
    let count = at.output_extent(slot, axis).ok()?;
    let read = reads(&at, slot, axis).first().copied()?;
    let AxisRead::Strided {
        axis: along,
        start,
        step,
    } = read
    else {
        return None;
    };
    (along == axis)
        .then(|| PlaceSet::Listed((0..count).map(|place| start + place * step).collect()))
}

/// The place that a Slice takes, if it takes only the first or only the last place along an axis of
/// unknown extent. `None` for other nodes.
fn sliced(analysis: &Analysis, node: NodeId, output: ValueId, axis: usize) -> Option<PlaceSet> {
    let at = analysis.at(node);
    at.only_attributes(&["axes", "ends", "starts"]).ok()?;
    let is_slice = analysis.graph.is(node, "Slice") && at.extent(0, axis).is_err();
    let [start] = at.list("starts").ok()??[..] else {
        return None;
    };
    let [end] = at.list("ends").ok()??[..] else {
        return None;
    };
    let steps = at.list("steps").ok()?.unwrap_or_else(|| vec![1]);
    let [step] = steps[..] else {
        return None;
    };
    // These conditions suffice if the axis has at least one place. Only a model without data has an
    // axis of extent 0.
    let is_last = start == -1 && end >= i64::from(i32::MAX);
    let is_first = start == 0 && end == 1;
    let is_one = analysis
        .facts
        .extent(output, axis)
        .is_none_or(|count| count == 1);
    (is_slice && step == 1 && is_one && (is_first || is_last))
        .then_some(PlaceSet::Sliced(start, end))
}

/// Writes the selection of places along an axis of a value of rank `rank`. `index` is the name of
/// the computed index, if the places are computed. Returns the name of the result, which keeps the
/// axis.
pub(super) fn write(
    maker: &mut Maker,
    value: &str,
    (axis, rank): (usize, usize),
    places: &PlaceSet,
    index: &str,
) -> String {
    let along = axis as i64;
    match places {
        PlaceSet::Listed(places) => match run(places) {
            Some(run) => maker.slice(value, &run, along),
            None => {
                let list: Vec<i64> = places.iter().map(|&place| place as i64).collect();
                let list = maker.ints(&list);
                gather(maker, value, &list, along)
            }
        },
        PlaceSet::Sliced(start, end) => maker.slice_between(value, [*start, *end], along),
        PlaceSet::Gathered(place) => {
            let list = maker.ints(&[*place]);
            gather(maker, value, &list, along)
        }
        PlaceSet::Computed(_) => gather(maker, value, index, along),
        PlaceSet::OfSample(_) => per_sample::gathered(maker, value, (axis, rank), index),
    }
}

fn gather(maker: &mut Maker, value: &str, list: &str, axis: i64) -> String {
    maker.op("Gather", &[value, list], vec![int("axis", axis)])
}

/// The range of consecutive places. `None` if they are not consecutive.
fn run(places: &[usize]) -> Option<std::ops::Range<usize>> {
    let first = *places.first()?;
    let follows = places
        .iter()
        .enumerate()
        .all(|(number, &place)| place == first + number);
    follows.then(|| first..first + places.len())
}
