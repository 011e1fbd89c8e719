//! Writes the nodes of a region once for each part.
//!
//! ```text
//! before                          after, in two parts
//! y = MatMul(Gelu(MatMul(x, w)), v)   x₀, x₁ = Split(x)
//!                                 y₀ = MatMul(Gelu(MatMul(x₀, w)), v)
//!                                 y₁ = MatMul(Gelu(MatMul(x₁, w)), v)
//!                                 y = Concat(y₀, y₁)
//! ```
//!
//! Each part is written before the next one, and the Concat reads the parts in this order: tract
//! and onnxruntime both run nodes in the order in which an output needs them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::axes::PartRead;
use super::open_parts::computed_extents;
use super::region::RegionNode;
use super::schedule::PlannedCut;
use crate::affine::recognize::Replacement;
use crate::analysis::Analysis;
use crate::ir::builder::{self, NewConstant};
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::input_at;
use crate::onnx::proto::NodeProto;
use crate::recipe::Recipe;
use crate::shape::facts::extent;

/// The names of the parts of each value along an axis.
type PartNames = HashMap<(ValueId, usize), Vec<String>>;

/// Writes the nodes of a region once for each part.
pub(super) fn written(analysis: &Analysis, cut: &PlannedCut) -> Replacement {
    let mut writer = PartWriter {
        analysis,
        graph: &analysis.graph,
        cut,
        extents: cut.extents(),
        keys: cut.keys(),
        names: HashSet::new(),
        nodes: vec![],
        constants: vec![],
        shared: HashMap::new(),
        by_keys: HashMap::new(),
        open_extents: None,
    };
    let mut parts = PartNames::new();
    for &(value, axis) in &cut.region.cut {
        let stored = writer.pick(value, axis);
        parts.insert(
            (value, axis),
            stored.unwrap_or_else(|| writer.split(value, axis)),
        );
    }
    let mut made: Vec<HashMap<ValueId, String>> = vec![HashMap::new(); cut.parts];
    for (part, made) in made.iter_mut().enumerate() {
        for member in &cut.region.members {
            writer.repeat(member, part, &parts, made);
        }
    }
    for &(value, axis) in &cut.region.joined {
        writer.join(value, axis, &made);
    }
    let PartWriter {
        nodes, constants, ..
    } = writer;
    Replacement {
        nodes: cut.region.nodes().collect(),
        made: nodes,
        constants,
    }
}

struct PartWriter<'w> {
    analysis: &'w Analysis<'w>,
    graph: &'w Graph<'w>,
    cut: &'w PlannedCut,
    extents: Vec<usize>,
    /// The keys of each part, if some are hidden.
    keys: Option<Vec<Range<usize>>>,
    names: HashSet<String>,
    nodes: Vec<NodeProto>,
    constants: Vec<NewConstant>,
    /// The names of integer constants, by their elements.
    shared: HashMap<Vec<i64>, String>,
    /// The names of Slices along the axis of keys, by the name of the value, the axis and the
    /// range.
    by_keys: HashMap<(String, usize, Range<usize>), String>,
    /// The name of the computed extents of the parts.
    open_extents: Option<String>,
}

impl PartWriter<'_> {
    /// A new name from a stem and a suffix, which neither the graph nor a part has yet.
    fn name(&mut self, stem: &str, suffix: &str) -> String {
        let mut names = (0..).map(|count| match count {
            0 => format!("{stem}_{suffix}"),
            _ => format!("{stem}_{suffix}_{count}"),
        });
        let name = names
            .find(|name| !self.graph.has(name) && !self.names.contains(name))
            .unwrap_or_default();
        self.names.insert(name.clone());
        name
    }

    fn ints(&mut self, stem: &str, values: Vec<i64>) -> String {
        if let Some(name) = self.shared.get(&values) {
            return name.clone();
        }
        let name = self.name(stem, "extents");
        self.constants.push(NewConstant::Integers {
            name: name.clone(),
            values: values.clone(),
        });
        self.shared.insert(values, name.clone());
        name
    }

    /// Stores the parts of a float constant that varies along the axis. `None` for other values,
    /// and for a mask, because recipes have finite numbers, and the proof reads hidden places only
    /// in tensors of the original model.
    fn pick(&mut self, value: ValueId, axis: usize) -> Option<Vec<String>> {
        let Analysis {
            constants, facts, ..
        } = self.analysis;
        let data_type = facts
            .data_type(value)
            .filter(|data_type| data_type.is_float())?;
        constants.is_constant(value).then_some(())?;
        let shape = facts
            .shape(value)?
            .iter()
            .map(extent)
            .collect::<Option<Vec<usize>>>()?;
        let stem = self.graph.value_name(value);
        (!constants.has_hidden(value)).then_some(())?;
        let whole = Recipe::constant(stem, &shape);
        let mut start = 0;
        let mut recipes = vec![];
        for &extent in &self.extents {
            recipes.push(whole.pick(axis, (start..start + extent).map(Some))?);
            start += extent;
        }
        let mut names = vec![];
        for (part, recipe) in recipes.into_iter().enumerate() {
            let name = self.name(stem, &format!("part_{part}"));
            self.constants.push(NewConstant::Weight {
                name: name.clone(),
                data_type,
                recipe,
                replaces: stem.to_owned(),
                contracted: vec![],
            });
            names.push(name);
        }
        Some(names)
    }

    /// Writes the Split of an input of the region.
    fn split(&mut self, value: ValueId, axis: usize) -> Vec<String> {
        let stem = self.graph.value_name(value);
        let like = self.like();
        let extents: Vec<i64> = self.extents.iter().map(|&extent| extent as i64).collect();
        let outputs: Vec<String> = (0..self.cut.parts)
            .map(|part| self.name(stem, &format!("part_{part}")))
            .collect();
        let name = self.name(stem, "split");
        let mut node = builder::node(&like, "Split", &name, &[stem], "");
        node.output.clone_from(&outputs);
        node.attribute.push(builder::int("axis", axis as i64));
        match input_at("Split", "split", self.graph.model().own_opset()) {
            Some(_) if self.cut.region.is_open => {
                let extents = self.computed_extents(value, axis);
                node.input.push(extents);
            }
            Some(_) => node.input.push(self.ints(stem, extents)),
            None => node.attribute.push(builder::ints("split", &extents)),
        }
        self.nodes.push(node);
        outputs
    }

    /// Writes the nodes that compute the extents of the parts of an open axis, once.
    fn computed_extents(&mut self, value: ValueId, axis: usize) -> String {
        if let Some(name) = &self.open_extents {
            return name.clone();
        }
        let parts = (self.cut.parts, self.extents.first().copied().unwrap_or(1));
        let like = self.cut.region.nodes().next().unwrap_or_default();
        let (name, maker) = computed_extents(self.analysis, (value, axis), parts, like);
        let (nodes, constants) = maker.done();
        self.nodes.extend(nodes);
        self.constants.extend(constants);
        self.open_extents = Some(name.clone());
        name
    }

    /// The node whose metadata the nodes around the parts get.
    fn like(&self) -> NodeProto {
        let first = self.cut.region.nodes().next();
        first
            .map(|node| self.graph.node(node).clone())
            .unwrap_or_default()
    }

    /// Writes a node for one part.
    fn repeat(
        &mut self,
        member: &RegionNode,
        part: usize,
        parts: &PartNames,
        made: &mut HashMap<ValueId, String>,
    ) {
        let mut node = self.graph.node(member.node).clone();
        for (slot, read) in member.reads.iter().enumerate() {
            let Some(value) = self.graph.input(member.node, slot) else {
                continue;
            };
            if let PartRead::Same(axis) = *read {
                let own = made
                    .get(&value)
                    .or_else(|| parts.get(&(value, axis)).map(|names| &names[part]));
                if let Some(own) = own {
                    node.input[slot].clone_from(own);
                }
            }
            node.input[slot] = self.with_keys(&node.input[slot], (member.node, slot), part);
        }
        if let Some(shape) = &member.shape {
            let shape = self.shape_of_part(member, shape.clone(), part);
            node.input[1] = self.ints(self.graph.name(member.node), shape);
        }
        for (slot, output) in self.graph.outputs(member.node).iter().enumerate() {
            let Some(output) = *output else { continue };
            let name = self.name(self.graph.value_name(output), &format!("part_{part}"));
            node.output[slot].clone_from(&name);
            made.insert(output, name);
        }
        node.name = Some(self.name(self.graph.name(member.node), &format!("part_{part}")));
        self.nodes.push(node);
    }

    /// The shape that a node reads for one part.
    fn shape_of_part(&self, member: &RegionNode, mut shape: Vec<i64>, part: usize) -> Vec<i64> {
        if !self.cut.region.is_open {
            shape[member.axis] = self.extents[part] as i64;
        }
        let output = self.graph.only_output(member.node);
        let keys = self.cut.region.keys.as_ref();
        let axis = output.and_then(|output| keys?.of_value(output));
        if let (Some(axis), Some(keys)) = (axis, &self.keys) {
            shape[axis] = keys[part].len() as i64;
        }
        shape
    }

    /// The name of an operand with only the keys of a part. Writes a Slice if the operand also has
    /// keys that the part does not read.
    fn with_keys(&mut self, name: &str, (node, slot): (NodeId, usize), part: usize) -> String {
        let (Some(axis), Some(keys)) = (&self.cut.region.keys, &self.keys) else {
            return name.to_owned();
        };
        let is_made = self
            .graph
            .input(node, slot)
            .is_some_and(|value| axis.of_value(value).is_some());
        let range = keys[part].clone();
        match axis.of_operand(node, slot) {
            Some(along) if !is_made && range != (0..axis.keys) => self.slice(name, along, range),
            _ => name.to_owned(),
        }
    }

    /// Writes a Slice, once for each name, axis and range.
    fn slice(&mut self, name: &str, axis: usize, range: Range<usize>) -> String {
        let key = (name.to_owned(), axis, range.clone());
        if let Some(known) = self.by_keys.get(&key) {
            return known.clone();
        }
        let output = self.name(name, "keys");
        let own_name = self.name(name, "slice");
        let mut node = builder::node(&self.like(), "Slice", &own_name, &[name], &output);
        let bounds = [range.start, range.end, axis].map(|number| number as i64);
        let slots = ["starts", "ends", "axes"];
        for (slot, number) in slots.into_iter().zip(bounds) {
            match input_at("Slice", slot, self.graph.model().own_opset()) {
                Some(_) => node.input.push(self.ints(name, vec![number])),
                None => node.attribute.push(builder::ints(slot, &[number])),
            }
        }
        self.nodes.push(node);
        self.by_keys.insert(key, output.clone());
        output
    }

    /// Writes the Concat of the parts of an output of the region.
    fn join(&mut self, value: ValueId, axis: usize, made: &[HashMap<ValueId, String>]) {
        let stem = self.graph.value_name(value);
        let like = self
            .graph
            .producer(value)
            .map(|(node, _)| self.graph.node(node).clone());
        let names: Vec<&str> = made.iter().map(|part| part[&value].as_str()).collect();
        let name = self.name(stem, "concat");
        let mut node = builder::node(&like.unwrap_or_default(), "Concat", &name, &names, stem);
        node.attribute.push(builder::int("axis", axis as i64));
        self.nodes.push(node);
    }
}
