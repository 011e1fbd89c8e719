//! Writes a region again for the places of a selection: first the selections of the cuts, then the
//! nodes of the region with narrow operands.

use std::collections::HashMap;

use super::per_sample::spread;
use super::places::{PlaceSet, Selection};
use super::region::NarrowRegion;
use super::selection::{Group, write};
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::axes::axis as counted;
use crate::ir::builder::Maker;
use crate::ir::{NodeId, ValueId};
use crate::ops::axes::PlaceAxis;
use crate::passes::packed_products::rename;
use crate::recipe::Recipe;
use crate::shape::facts::extent;

/// Replaces a region and the selections that follow it by selections of the cuts, followed by the
/// narrow region. `None` if a shape that the new nodes need is unknown.
pub(super) fn moved(
    analysis: &Analysis,
    group: &Group,
    region: &NarrowRegion,
) -> Option<Replacement> {
    let graph = &analysis.graph;
    let mut maker = Maker::new(graph, group.first());
    let index = index(analysis, &group.places, &mut maker)?;
    let mut names: HashMap<(ValueId, PlaceAxis), String> = HashMap::new();
    for &cut in &region.cuts {
        let name = at_cut(analysis, &mut maker, (group, region), cut, &index)?;
        names.insert(cut, name);
    }
    let mut made = vec![];
    for &node in &region.nodes {
        again(analysis, region, node, &mut maker, &mut names)?;
    }
    for &(node, whole) in &region.shapes {
        let output = graph.only_output(node)?;
        let attributes = graph.node(node).attribute.clone();
        let shape = maker.op("Shape", &[graph.value_name(whole)], attributes);
        made.push((shape, graph.value_name(output).to_owned()));
    }
    let selected_value = (group.value, PlaceAxis::Own(group.axis));
    let narrow = names.get(&selected_value)?.clone();
    for selection in &group.selections {
        let name = selected(&mut maker, &narrow, group, selection)?;
        made.push((name, graph.value_name(selection.output).to_owned()));
    }
    let (mut nodes, constants) = maker.done();
    for (name, output) in &made {
        nodes.iter_mut().for_each(|node| rename(node, name, output));
    }
    Some(Replacement {
        nodes: replaced(group, region),
        made: nodes,
        constants,
    })
}

/// The nodes of a region, the nodes of the selections after it, and the nodes that read shapes of
/// its values.
fn replaced(group: &Group, region: &NarrowRegion) -> Vec<NodeId> {
    let mut replaced = region.nodes.clone();
    replaced.extend(region.shapes.iter().map(|&(node, _)| node));
    let selections = group.selections.iter();
    replaced.extend(selections.flat_map(|selection| &selection.nodes));
    replaced.sort_unstable();
    replaced.dedup();
    replaced
}

/// Writes the selection of places of a cut. Returns the name of the result. `None` if the places
/// are along rows, and an extent after the rows is unknown.
fn at_cut(
    analysis: &Analysis,
    maker: &mut Maker,
    (group, region): (&Group, &NarrowRegion),
    (value, axis): (ValueId, PlaceAxis),
    index: &str,
) -> Option<String> {
    let whole = analysis.graph.value_name(value);
    let rank = analysis.facts.rank(value)?;
    if let Some(stored) = stored(analysis, maker, value, axis, &group.places) {
        return Some(stored);
    }
    if let Some(&to) = region.shared.get(&value) {
        let aligned = aligned(analysis, maker, value, to)?;
        let along = axis.axis() + to - rank;
        return Some(spread(maker, &aligned, along, to, index));
    }
    match axis {
        PlaceAxis::Own(axis) => Some(write(maker, whole, (axis, rank), &group.places, index)),
        PlaceAxis::Rows { axis, places } => {
            let [apart, rows] = row_shapes(analysis, value, axis, places)?;
            let apart = maker.reshape(whole, &apart);
            let taken = write(maker, &apart, (axis + 1, rank + 1), &group.places, index);
            Some(maker.reshape(&taken, &rows))
        }
    }
}

/// Writes the computed index as a list of one place, or as a column with a row for each sample.
/// Returns its name, which is empty if the places are not computed.
fn index(analysis: &Analysis, places: &PlaceSet, maker: &mut Maker) -> Option<String> {
    let (value, rank) = match *places {
        PlaceSet::Computed(index) => (index, 1),
        PlaceSet::OfSample(index) => (index, 2),
        _ => return Some(String::new()),
    };
    let name = analysis.graph.value_name(value);
    let own = analysis.facts.rank(value)?;
    Some(match own < rank {
        true => maker.unsqueeze(name, &[own as i64]),
        false => name.to_owned(),
    })
}

/// Stores the selected places of a float constant. `None` for other values, or if the places are
/// computed.
fn stored(
    analysis: &Analysis,
    maker: &mut Maker,
    value: ValueId,
    axis: PlaceAxis,
    places: &PlaceSet,
) -> Option<String> {
    let PlaceAxis::Own(axis) = axis else {
        return None;
    };
    let data_type = analysis.facts.data_type(value).filter(|it| it.is_float())?;
    if !analysis.constants.is_constant(value) || analysis.constants.is_quantized(value) {
        return None;
    }
    let recipe = constant(analysis, value)?;
    let whole = *recipe.shape().get(axis)?;
    let places = match places {
        PlaceSet::Listed(places) => places.clone(),
        &PlaceSet::Gathered(place) | &PlaceSet::Sliced(place, _) => {
            vec![counted(place, whole).ok()?]
        }
        PlaceSet::Computed(_) | PlaceSet::OfSample(_) => return None,
    };
    let recipe = recipe.pick(axis, places.into_iter().map(Some))?;
    Some(maker.floats(data_type, &recipe))
}

/// The recipe that reads a constant unchanged. `None` if an extent is unknown.
fn constant(analysis: &Analysis, value: ValueId) -> Option<Recipe> {
    let shape = analysis.facts.shape(value)?;
    let extents: Vec<usize> = shape.iter().map(extent).collect::<Option<_>>()?;
    Some(Recipe::constant(analysis.graph.value_name(value), &extents))
}

/// Adds leading axes of extent 1 to a value, up to `rank` axes. A float constant is stored again in
/// the new shape. `None` for a constant of another type.
fn aligned(analysis: &Analysis, maker: &mut Maker, value: ValueId, rank: usize) -> Option<String> {
    let name = analysis.graph.value_name(value);
    let missing = rank.checked_sub(analysis.facts.rank(value)?)?;
    if missing == 0 {
        return Some(name.to_owned());
    }
    if !analysis.constants.is_constant(value) {
        let axes: Vec<i64> = (0..missing as i64).collect();
        return Some(maker.unsqueeze(name, &axes));
    }
    let data_type = analysis.facts.data_type(value).filter(|it| it.is_float())?;
    let recipe = constant(analysis, value)?.align(rank)?;
    Some(maker.floats(data_type, &recipe))
}

/// Writes a node of the region again, with narrow operands. Adds the names of its narrow outputs to
/// `names`. `None` if a narrow operand or the target of a Reshape cannot be written.
fn again(
    analysis: &Analysis,
    region: &NarrowRegion,
    node: NodeId,
    maker: &mut Maker,
    names: &mut HashMap<(ValueId, PlaceAxis), String>,
) -> Option<()> {
    let graph = &analysis.graph;
    let mut inputs: Vec<String> = vec![];
    for (slot, input) in graph.inputs(node).iter().enumerate() {
        let narrow = input.zip(region.slots.get(&(node, slot)).copied());
        inputs.push(match (narrow, input) {
            (Some(place), _) => names.get(&place)?.clone(),
            (None, Some(value)) => graph.value_name(*value).to_owned(),
            (None, None) => String::new(),
        });
    }
    if graph.is(node, "Reshape") {
        inputs[1] = target(analysis, region, node, maker)?;
    }
    let made = maker.repeat(node, &inputs);
    for (output, name) in graph.outputs(node).iter().zip(made) {
        let place = output.and_then(|output| Some((output, *region.narrow.get(&output)?)));
        names.extend(place.map(|place| (place, name)));
    }
    Some(())
}

/// Writes the target shape of a Reshape in the region, with the number of selected places. Returns
/// its name. `None` if an extent of the target that must be known is unknown.
fn target(
    analysis: &Analysis,
    region: &NarrowRegion,
    node: NodeId,
    maker: &mut Maker,
) -> Option<String> {
    let graph = &analysis.graph;
    let at = analysis.at(node);
    let output = graph.output(node, 0)?;
    let (from, to) = (*region.slots.get(&(node, 0))?, *region.narrow.get(&output)?);
    let mut list = at.ints(1).ok()??;
    // A 0 would copy the number of selected places from the input, so the extent is written
    // instead.
    if from.axis() != to.axis() && list.get(from.axis()) == Some(&0) {
        list[from.axis()] = i64::try_from(analysis.facts.extent(output, from.axis())?).ok()?;
    }
    let extent = list.get_mut(to.axis())?;
    let count = i64::try_from(region.count).ok()?;
    match to {
        PlaceAxis::Own(_) => *extent = count,
        PlaceAxis::Rows { places, .. } if *extent > 0 => {
            *extent = *extent / i64::try_from(places).ok()? * count;
        }
        PlaceAxis::Rows { .. } => {}
    }
    Some(maker.ints(&list))
}

/// Two shapes of a value with `[B·T]` rows along an axis: with B and T as two axes, and with the
/// rows. `None` if an extent after the rows is unknown.
fn row_shapes(
    analysis: &Analysis,
    value: ValueId,
    axis: usize,
    places: usize,
) -> Option<[Vec<i64>; 2]> {
    let shape = analysis.facts.shape(value)?;
    let extents: Option<Vec<usize>> = shape.iter().skip(axis + 1).map(extent).collect();
    let extents: Vec<i64> = extents?.into_iter().map(|it| it as i64).collect();
    // A 0 in the target of a Reshape copies the extent of the axis with the same index.
    let copied = vec![0; axis];
    let apart = [&copied[..], &[-1, places as i64], &extents].concat();
    let rows = [&copied[..], &[-1], &extents].concat();
    Some([apart, rows])
}

/// Writes the result of one selection. `narrow` is a value with the places that all selections of
/// the group take together. Returns the name of the result. `None` if the places of the selection
/// are not among these places.
fn selected(
    maker: &mut Maker,
    narrow: &str,
    group: &Group,
    selection: &Selection,
) -> Option<String> {
    let along = group.axis as i64;
    let mut name = narrow.to_owned();
    if selection.places != group.places {
        let (PlaceSet::Listed(all), PlaceSet::Listed(own)) = (&group.places, &selection.places)
        else {
            return None;
        };
        let places: Vec<usize> = own
            .iter()
            .map(|own| all.iter().position(|place| place == own))
            .collect::<Option<_>>()?;
        let places = PlaceSet::Listed(places);
        name = write(maker, narrow, (group.axis, group.axis + 1), &places, "");
    }
    Some(if selection.drops_axis {
        maker.squeeze(&name, along)
    } else {
        maker.op("Identity", &[&name], vec![])
    })
}
