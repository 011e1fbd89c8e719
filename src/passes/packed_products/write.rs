//! Writes a packed product as several products, each with its columns of the weight and the bias.

use super::{PackedProduct, TakenPart};
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::analysis::axis_factors::LayoutMap;
use crate::ir::NodeId;
use crate::ir::builder::{Maker, NewConstant};
use crate::ir::regions::region_path;
use crate::onnx::proto::NodeProto;
use crate::onnx::tensor::DataType;
use crate::recipe::Recipe;
use crate::shape::facts::extent;

/// The layout of a product's columns in parts.
struct ColumnLayout {
    /// The axis of the parts before the Transposes.
    axis: usize,
    /// The number of runs `O`, the number of parts `P`, and the number `I` of adjacent columns of a
    /// part in each run.
    factors: [usize; 3],
}

/// The number of columns of each place on the axis of the parts. `None` if the layout of the
/// columns is unknown.
pub(in crate::passes) fn columns_of(
    analysis: &Analysis,
    product: &PackedProduct,
    axis: usize,
) -> Option<usize> {
    let [outer, _, inner] = layout(analysis, product, axis)?.factors;
    Some(outer * inner)
}

/// Writes one product for each group of parts. `None` if two groups share a place, or if the places
/// of a part are not adjacent in its group.
pub(in crate::passes) fn divided(
    analysis: &Analysis,
    product: &PackedProduct,
    axis: usize,
    groups: &[Vec<&TakenPart>],
) -> Option<Replacement> {
    let graph = &analysis.graph;
    let layout = layout(analysis, product, axis)?;
    let sizes: Vec<Vec<usize>> = groups.iter().map(|group| places(group)).collect();
    let mut all = sizes.concat();
    all.sort_unstable();
    if all.windows(2).any(|pair| pair[0] == pair[1]) {
        return None;
    }
    let mut writer = GroupWriter {
        analysis,
        product,
        axis,
        layout,
        maker: Maker::new(graph, product.node),
        made: vec![],
    };
    for (group, places) in groups.iter().zip(&sizes) {
        writer.write(group, places)?;
    }
    let (made, constants) = writer.finish();
    let nodes = replaced(product, groups);
    let body = region_path(graph.node(product.node));
    let are_in_body = nodes
        .iter()
        .all(|&node| region_path(graph.node(node)) == body);
    are_in_body.then_some(Replacement {
        nodes,
        made,
        constants,
    })
}

/// The nodes that are replaced: the product, the operators after it, and the nodes that take its
/// parts.
fn replaced(product: &PackedProduct, groups: &[Vec<&TakenPart>]) -> Vec<NodeId> {
    let mut nodes = vec![product.node];
    nodes.extend(product.bias.map(|(node, _)| node));
    nodes.extend(product.reshape);
    nodes.extend(&product.transposes);
    for part in groups.iter().flatten() {
        nodes.push(part.node);
        nodes.extend(part.squeeze);
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The places of a group, in ascending order.
fn places(group: &[&TakenPart]) -> Vec<usize> {
    let mut places: Vec<usize> = group.iter().flat_map(|part| part.places.clone()).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// The layout of a product's columns. `axis` is the axis of the parts in the whole value. `None` if
/// the parts do not divide the columns in this way.
fn layout(analysis: &Analysis, product: &PackedProduct, axis: usize) -> Option<ColumnLayout> {
    let graph = &analysis.graph;
    let mut axis = axis;
    for &node in product.transposes.iter().rev() {
        let at = analysis.at(node);
        axis = *at.permutation(at.rank(0).ok()?).ok()?.get(axis)?;
    }
    let made = graph.only_output(product.node)?;
    let shape = analysis.facts.shape(made)?;
    let columns = extent(shape.last()?)?;
    let Some(reshape) = product.reshape else {
        let factors = [1, columns, 1];
        return (axis + 1 == shape.len()).then_some(ColumnLayout { axis, factors });
    };
    let behind = analysis.facts.shape(graph.only_output(reshape)?)?;
    let mut trace = LayoutMap::new(&shape);
    trace.follow(graph.node(reshape), &behind)?;
    let (from, [outer, inner]) = trace.run(axis)?;
    let parts = extent(behind.get(axis)?)?;
    let factors = [outer, parts, inner];
    (from + 1 == shape.len() && outer * parts * inner == columns)
        .then_some(ColumnLayout { axis, factors })
}

/// Writes the products of groups.
struct GroupWriter<'w> {
    analysis: &'w Analysis<'w>,
    product: &'w PackedProduct,
    /// The axis of the parts in the whole value.
    axis: usize,
    layout: ColumnLayout,
    maker: Maker<'w>,
    /// New values, each with the name of the value that it replaces.
    made: Vec<(String, String)>,
}

impl GroupWriter<'_> {
    /// Writes the product of a group, and its parts. `None` if the places of a part are not
    /// adjacent in the group.
    fn write(&mut self, group: &[&TakenPart], places: &[usize]) -> Option<()> {
        let product = self.product_of(places)?;
        if let [part] = group
            && part.drops_axis
            && places.len() == 1
            && let Some(output) = self.arranged_without_axis(&product)
        {
            self.output(output, part);
            return Some(());
        }
        let whole = self.arranged(product, places.len())?;
        for part in group {
            let start = places
                .iter()
                .position(|&place| place == part.places.start)?;
            let run = start..start + part.places.len();
            if places.get(run.clone())? != part.places.clone().collect::<Vec<_>>() {
                return None;
            }
            let mut own = whole.clone();
            if run.len() < places.len() {
                own = self.maker.slice(&own, &run, self.axis as i64);
            }
            if part.drops_axis {
                own = self.maker.squeeze(&own, self.axis as i64);
            } else if own == whole {
                own = self.maker.op("Identity", &[&own], vec![]);
            }
            self.output(own, part);
        }
        Some(())
    }

    /// Records that the value `name` replaces the output of a part.
    fn output(&mut self, name: String, part: &TakenPart) {
        let output = self.analysis.graph.value_name(part.output);
        self.made.push((name, output.to_owned()));
    }

    /// Writes the product for the columns of some places, with the bias. Returns its name. `None`
    /// if the weight is not float, or if the bias does not have one element for each column.
    fn product_of(&mut self, places: &[usize]) -> Option<String> {
        let (analysis, graph) = (self.analysis, &self.analysis.graph);
        let at = analysis.at(self.product.node);
        let columns = columns(self.layout.factors, places);
        let weight = at.weight(1).ok()?;
        let stored = at.constant(1).ok()?;
        let is_gemm = graph.is(self.product.node, "Gemm");
        let weights = match is_gemm && at.flag("transB", false).ok()? {
            true => stored.transpose(&[1, 0])?,
            false => stored,
        };
        let recipe = weights.pick(1, columns.iter().copied())?;
        let data_type = analysis.facts.data_type(weight);
        let data_type = data_type.filter(|it| it.is_float())?;
        let replaced = graph.value_name(weight);
        let weight = self.maker.weight(data_type, &recipe, replaced, vec![0]);
        let value = graph.value_name(at.input(0).ok()?);
        let product = self.maker.op("MatMul", &[value, &weight], vec![]);
        let Some((node, slot)) = self.product.bias else {
            return Some(product);
        };
        let bias = self.bias(node, slot, &columns, data_type)?;
        Some(self.maker.op("Add", &[&product, &bias], vec![]))
    }

    /// Stores the columns `columns` of a bias. `None` unless the bias has one element for each
    /// column of the product.
    fn bias(
        &mut self,
        node: NodeId,
        slot: usize,
        columns: &[Option<usize>],
        data_type: DataType,
    ) -> Option<String> {
        let recipe: Recipe = self.analysis.at(node).constant(slot).ok()?;
        let last = recipe.shape().len().checked_sub(1)?;
        let is_vector = recipe.shape()[last] == self.layout.factors.iter().product::<usize>()
            && recipe.shape()[..last].iter().all(|&n| n == 1);
        let picked = recipe
            .pick(last, columns.iter().copied())
            .filter(|_| is_vector)?;
        Some(self.maker.floats(data_type, &picked))
    }

    /// Applies the Reshape and the Transposes of the packed product to the product of some places.
    /// Returns the name of the result. `None` if the target of the Reshape is not constant.
    fn arranged(&mut self, product: String, places: usize) -> Option<String> {
        let mut name = product;
        if let Some(node) = self.product.reshape {
            let mut target = self.analysis.at(node).ints(1).ok()??;
            *target.get_mut(self.layout.axis)? = places as i64;
            let target = self.maker.ints(&target);
            name = self.maker.repeat(node, &[name, target]).first()?.clone();
        }
        for &node in &self.product.transposes {
            name = self.maker.repeat(node, &[name]).first()?.clone();
        }
        Some(name)
    }

    /// Like [`Self::arranged`], but for one place, and without the axis of the parts. `None` if the
    /// packed product has no Reshape, or if the target of the Reshape has a 0 at or after that
    /// axis.
    fn arranged_without_axis(&mut self, product: &str) -> Option<String> {
        let node = self.product.reshape?;
        let mut target = self.analysis.at(node).ints(1).ok()??;
        let mut axis = self.layout.axis;
        if target.get(axis..)?.contains(&0) {
            return None;
        }
        target.remove(axis);
        let target = self.maker.ints(&target);
        let inputs = [product.to_owned(), target];
        let mut name = self.maker.repeat(node, &inputs).first()?.clone();
        for &node in &self.product.transposes {
            let at = self.analysis.at(node);
            let perm = at.permutation(at.rank(0).ok()?).ok()?;
            let kept = perm.iter().filter(|&&from| from != axis);
            let perm_without: Vec<i64> = kept
                .map(|&from| (from - usize::from(from > axis)) as i64)
                .collect();
            axis = perm.iter().position(|&from| from == axis)?;
            name = self.maker.transpose(&name, &perm_without);
        }
        Some(name)
    }

    /// Returns the nodes and the constants. In the nodes, the parts have the names of the values
    /// that they replace.
    fn finish(self) -> (Vec<NodeProto>, Vec<NewConstant>) {
        let (mut nodes, constants) = self.maker.done();
        for (name, output) in &self.made {
            nodes.iter_mut().for_each(|node| rename(node, name, output));
        }
        (nodes, constants)
    }
}

/// The indices of the columns that belong to some places.
fn columns([outer, parts, inner]: [usize; 3], places: &[usize]) -> Vec<Option<usize>> {
    let mut columns = vec![];
    for run in 0..outer {
        for place in places {
            columns.extend((0..inner).map(|column| Some((run * parts + place) * inner + column)));
        }
    }
    columns
}

/// Renames a value in a node that outputs or reads it.
pub(in crate::passes) fn rename(node: &mut NodeProto, from: &str, to: &str) {
    for name in node
        .input
        .iter_mut()
        .chain(&mut node.output)
        .filter(|name| *name == from)
    {
        to.clone_into(name);
    }
}
