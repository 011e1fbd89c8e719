//! Merges a Slice of a Slice into one Slice of the value itself.
//!
//! Exporters write a Slice for each indexed axis. Patch merging reads four windows of every other
//! row and every other column. Two windows share a Slice of one axis, but four Slices of both axes
//! still move fewer elements.

use crate::affine::materialize::{Edit, written_anew};
use crate::affine::propagate::rules::slice::{Cut, cuts};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, ints};
use crate::ir::regions::region_path;
use crate::ir::{Reader, ValueId};
use crate::onnx::operator::input_at;

/// The edits that merge Slices.
pub(crate) fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| merged(analysis, node))
}

/// Writes two successive Slices as one Slice of the first Slice's input. `None` unless all readers
/// of the first Slice can be merged with it.
fn merged<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph
        .input(node, 0)
        .filter(|&between| !graph.is_output(between))?;
    let (first, _) = graph.producer(between)?;
    let mut readers = graph.readers(between).iter();
    let merges_all = graph.is(first, "Slice")
        && readers.all(|reader| match *reader {
            Reader::Node { node, input: 0 } => both(analysis, first, between, node).is_some(),
            _ => false,
        });
    let all = both(analysis, first, between, node).filter(|_| merges_all)?;
    let mut maker = Maker::new(graph, node);
    write(&mut maker, graph.value_name(graph.input(first, 0)?), &all);
    Some(maker)
}

/// Writes one Slice that makes all these cuts of a value.
fn write(maker: &mut Maker, value: &str, all: &[(usize, Cut)]) {
    let starts: Vec<i64> = all.iter().map(|(_, cut)| cut.start).collect();
    let ends: Vec<i64> = all.iter().map(|(_, cut)| cut.end).collect();
    let axes: Vec<i64> = all.iter().map(|&(axis, _)| axis as i64).collect();
    let steps: Vec<i64> = all.iter().map(|(_, cut)| cut.step).collect();
    if input_at("Slice", "starts", maker.opset()).is_none() {
        // In operator sets where `starts` is an attribute, all steps are 1.
        let attributes = vec![
            ints("starts", &starts),
            ints("ends", &ends),
            ints("axes", &axes),
        ];
        maker.op("Slice", &[value], attributes);
        return;
    }
    let mut lists = vec![starts, ends, axes];
    if steps.iter().any(|&step| step != 1) {
        lists.push(steps);
    }
    let lists: Vec<String> = lists.iter().map(|list| maker.ints(list)).collect();
    let read: Vec<&str> = [value]
        .into_iter()
        .chain(lists.iter().map(String::as_str))
        .collect();
    maker.op("Slice", &read, vec![]);
}

/// The axes that two successive Slices cut, each with the composed cut. `None` if two cuts of an
/// axis cannot be composed.
fn both(
    analysis: &Analysis,
    first: NodeId,
    between: ValueId,
    second: NodeId,
) -> Option<Vec<(usize, Cut)>> {
    let graph = &analysis.graph;
    let is_beside = graph.is(second, "Slice")
        && region_path(graph.node(first)) == region_path(graph.node(second));
    let [before, behind] =
        [first, second].map(|node| is_beside.then(|| cuts(&analysis.at(node)).ok()).flatten());
    let mut all: Vec<(usize, Cut)> = vec![];
    for (axis, cut) in before?.into_iter().chain(behind?) {
        match all.iter_mut().find(|(other, _)| *other == axis) {
            Some((_, first)) => *first = in_a_row(*first, cut?)?,
            None => all.push((axis, cut?)),
        }
    }
    analysis.facts.shape(between).is_some().then_some(all)
}

/// The composition of two cuts of an axis: places `c..d` of the places `a..b` are `a + c..min(b, a
/// + d)`, if all of them count from the start. `None` for other cuts.
fn in_a_row(first: Cut, second: Cut) -> Option<Cut> {
    let start = first.start.checked_add(second.start)?;
    let end = first.end.min(first.start.saturating_add(second.end));
    (is_from_start(first) && is_from_start(second)).then_some(Cut {
        start,
        end,
        step: 1,
    })
}

/// Whether a cut takes places with step 1, counted from the start.
fn is_from_start(cut: Cut) -> bool {
    cut.step == 1 && cut.start >= 0 && cut.end >= 0
}
