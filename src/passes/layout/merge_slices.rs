//! Slices of what Slices make: each is one Slice of the value itself.
//!
//! Exporters write a Slice for each axis that is indexed. Where windows of every other place are put beside each other, as
//! where patches are merged, two of each four share the first one; and still fewer elements are moved without it.

use crate::affine::materialize::{Edit, written_anew};
use crate::affine::propagate::rules::slice::{Cut, cuts};
use crate::analysis::Analysis;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, ints};
use crate::ir::regions::way;
use crate::ir::{Reader, ValueId};
use crate::onnx::operator::input_at;

/// The edits that merge Slices.
pub fn edits(analysis: &Analysis) -> Vec<Edit> {
    written_anew(analysis, |node, _| at_once(analysis, node))
}

/// A Slice of the value that the one before it cuts, which all others that read it can cut as well.
fn at_once<'m>(analysis: &'m Analysis, node: NodeId) -> Option<Maker<'m>> {
    let graph = &analysis.graph;
    let between = graph
        .input(node, 0)
        .filter(|&between| !graph.is_output(between))?;
    let (first, _) = graph.producer(between)?;
    let both = |reader: &Reader| match *reader {
        Reader::Node { node, input: 0 } => both(analysis, first, between, node),
        _ => None,
    };
    let goes = graph.is(first, "Slice")
        && graph
            .readers(between)
            .iter()
            .all(|reader| both(reader).is_some());
    let all = both(&Reader::Node { node, input: 0 }).filter(|_| goes)?;
    let mut maker = Maker::new(graph, node);
    write(&mut maker, graph.value_name(graph.input(first, 0)?), &all);
    Some(maker)
}

/// A Slice of several axes.
fn write(maker: &mut Maker, value: &str, all: &[(usize, Cut)]) {
    let list = |of: &dyn Fn(&(usize, Cut)) -> i64| -> Vec<i64> { all.iter().map(of).collect() };
    let (starts, ends) = (list(&|(_, cut)| cut.start), list(&|(_, cut)| cut.end));
    let (axes, steps) = (list(&|&(axis, _)| axis as i64), list(&|(_, cut)| cut.step));
    if input_at("Slice", "starts", maker.opset()).is_none() {
        // The steps of these are all one.
        let told = vec![
            ints("starts", &starts),
            ints("ends", &ends),
            ints("axes", &axes),
        ];
        maker.op("Slice", &[value], told);
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

/// The axes that two Slices in a row cut, and how, where each axis is cut by one of them.
fn both(
    analysis: &Analysis,
    first: NodeId,
    between: ValueId,
    second: NodeId,
) -> Option<Vec<(usize, Cut)>> {
    let graph = &analysis.graph;
    let is_beside = graph.is(second, "Slice") && way(graph.node(first)) == way(graph.node(second));
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

/// The places `c..d` of the places `a..b` of an axis: `a + c..min(b, a + d)`, where all are counted from the start.
fn in_a_row(first: Cut, second: Cut) -> Option<Cut> {
    let is_plain = |cut: Cut| cut.step == 1 && cut.start >= 0 && cut.end >= 0;
    let start = first.start.checked_add(second.start)?;
    let end = first.end.min(first.start.saturating_add(second.end));
    (is_plain(first) && is_plain(second)).then_some(Cut {
        start,
        end,
        step: 1,
    })
}
