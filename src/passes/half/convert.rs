//! Writes a model in half precision. Each weight is rounded once, and a Cast is added if an
//! operator reads a value in another type.

use crate::affine::apply::{RangeCheck, apply};
use crate::affine::plan::{ClampedMask, HalfPlan, Stored, WideOperator};
use crate::analysis::Analysis;
use crate::error::{Error, Result};
use crate::hash::{HashMap, HashSet};
use crate::ir::NodeId;
use crate::ir::builder::{self, int};
use crate::ir::editor::Editor;
use crate::ir::names::Names;
use crate::onnx::Model;
use crate::onnx::default_types::write_default_type;
use crate::onnx::node::{bodies, bodies_mut};
use crate::onnx::operator::TYPES;
use crate::onnx::proto::{GraphProto, NodeProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor::{self, DataType, declared_type, is_container};
use crate::passes::half::constants::HalfConstants;
use crate::passes::half::masks::clamp_mask;
use crate::passes::half::precision::{NodeTypes, Precisions};
use crate::passes::half::{EndType, HalfType};
use crate::passes::simplify::without_dead_code;

/// A converted model.
pub(crate) struct Conversion {
    /// The model.
    pub(crate) model: Model,
    /// The constants that the conversion stores.
    pub(crate) stored: Vec<Stored>,
    /// The number of operators in half, and the operators that stay in float32.
    pub(crate) plan: HalfPlan,
}

/// Converts a model to half precision.
///
/// # Errors
/// [`Error::Defect`] if a constant can be stored neither in half nor in float32.
pub(crate) fn to_half(analysis: &Analysis, to: HalfType, ends: EndType) -> Result<Conversion> {
    let graph = &analysis.graph;
    let mut refused: HashSet<NodeId> = HashSet::default();
    loop {
        let precisions = Precisions::decide(analysis, to.data_type(), &refused);
        let constants = HalfConstants::find(analysis, &precisions, to);
        let mut editor = Editor::new(graph);
        let before = refused.len();
        let edits = (&constants.edits[..], &[][..]);
        match apply(edits, analysis, &mut editor, RangeCheck::Done, &|_, _| {}) {
            Ok(mut stored) => {
                // The sites of these edits are indices of nodes. They are dropped, because the plan
                // would take them for its own sites.
                stored.iter_mut().for_each(|stored| stored.sites.clear());
                return Ok(finished(
                    analysis,
                    &precisions,
                    constants.masks,
                    (editor, stored),
                    (to, ends),
                ));
            }
            Err(failed) => refused.extend(failed.iter().flat_map(|failed| &failed.sites)),
        }
        if refused.len() == before {
            return Err(Error::Defect {
                file: graph.model().file(),
                at: "half precision".to_owned(),
                reason: "a constant cannot be stored".to_owned(),
            });
        }
    }
}

/// Writes the types of the nodes into the model, and lists the operators that stay in float32.
fn finished(
    analysis: &Analysis,
    precisions: &Precisions,
    masks: Vec<ClampedMask>,
    (editor, stored): (Editor, Vec<Stored>),
    (to, ends): (HalfType, EndType),
) -> Conversion {
    let graph = &analysis.graph;
    // Without the Constants whose readers all read a constant in half now.
    let mut proto = without_dead_code(editor.edited());
    let mut rewriter = Rewriter::new(analysis, precisions, &proto, (to, ends));
    rewriter.rewrite(&mut proto);
    let nodes = graph.order().iter().copied();
    let with_floats: Vec<NodeId> = nodes.filter(|&node| precisions.has_floats(node)).collect();
    let wide: Vec<WideOperator> = with_floats
        .iter()
        .filter_map(|&node| {
            Some(WideOperator {
                name: graph.name(node).to_owned(),
                operator: graph.domain_op(node).1.to_owned(),
                why: precisions.wide(node)?,
            })
        })
        .collect();
    let operators = with_floats
        .iter()
        .filter(|&&node| precisions.wide(node).is_none())
        .filter(|&&node| !graph.is(node, "Cast") && !graph.is(node, "Constant"));
    let plan = HalfPlan {
        to: to.to_string(),
        operators: operators.count(),
        constants: stored.len(),
        casts: rewriter.casts.len() + rewriter.end_casts,
        wide,
        masks,
    };
    Conversion {
        model: graph.model().with_graph(proto),
        stored,
        plan,
    }
}

/// Writes the types of nodes into a graph, and adds the Casts.
struct Rewriter<'r> {
    model: &'r Model,
    half: HalfType,
    to: DataType,
    ends: EndType,
    names: Names<'r>,
    /// The types of the nodes, by the name of their first output.
    types: HashMap<String, NodeTypes>,
    /// The type of each value after the conversion, if the value was float32 before, or was already
    /// half.
    own: HashMap<String, DataType>,
    /// The results of the added Casts, by the name of the value and the type.
    casts: HashMap<(String, DataType), String>,
    /// The new names of values that were outputs of the model. Casts to the types of the outputs
    /// now write the former names.
    renamed: HashMap<String, String>,
    end_casts: usize,
    made: Vec<NodeProto>,
}

impl<'r> Rewriter<'r> {
    fn new(
        analysis: &'r Analysis,
        precisions: &Precisions,
        proto: &GraphProto,
        (to, ends): (HalfType, EndType),
    ) -> Self {
        let graph = &analysis.graph;
        let mut names = Names::new(graph.model());
        let stored = proto.initializer.iter().map(|tensor| tensor.name());
        stored.for_each(|name| {
            if graph.value(name).is_none() {
                names.fresh(name);
            }
        });
        let (mut types, mut own) = (HashMap::default(), HashMap::default());
        let values = graph.order().iter().flat_map(|&node| graph.outputs(node));
        for &value in values.flatten() {
            if analysis.facts.data_type(value) == Some(to.data_type()) {
                own.insert(graph.value_name(value).to_owned(), to.data_type());
            }
        }
        for input in &graph.proto().input {
            let is_float = graph
                .value(input.name())
                .is_some_and(|value| precisions.is_float(value));
            if is_float {
                own.insert(input.name().to_owned(), ends.data_type(input, to));
            }
        }
        for &node in graph.order() {
            let outputs = graph.outputs(node);
            let first = outputs.iter().flatten().next();
            let Some(&first) = first.filter(|_| precisions.has_floats(node)) else {
                continue;
            };
            let of_node = precisions.types(node);
            for (value, data_type) in outputs.iter().zip(&of_node.outputs) {
                if let (Some(value), Some(data_type)) = (value, data_type) {
                    own.insert(graph.value_name(*value).to_owned(), *data_type);
                }
            }
            types.insert(graph.value_name(first).to_owned(), of_node);
        }
        Rewriter {
            model: graph.model(),
            half: to,
            to: to.data_type(),
            ends,
            names,
            types,
            own,
            casts: HashMap::default(),
            renamed: HashMap::default(),
            end_casts: 0,
            made: vec![],
        }
    }

    fn rewrite(&mut self, graph: &mut GraphProto) {
        self.rename_outputs(graph);
        for mut node in std::mem::take(&mut graph.node) {
            self.node(&mut node);
            self.made.push(node);
        }
        self.cast_outputs(graph);
        graph.node = std::mem::take(&mut self.made);
        // The declaration of an inner sequence or optional is not required, and its elements may be half now.
        graph
            .value_info
            .retain(|info| !self.renamed.contains_key(info.name()) && !is_container(info));
        for info in &mut graph.value_info {
            if let Some(&data_type) = self.own.get(info.name()) {
                set_type(info, data_type);
            }
        }
    }

    /// The type of an output after the conversion. An output without a declaration is taken for
    /// float32.
    fn wanted(&self, output: &ValueInfoProto) -> DataType {
        match declared_type(output) {
            None | Some(DataType::Float) => self.ends.data_type(output, self.half),
            Some(other) => other,
        }
    }

    /// Renames each value that is an output, if its type now differs from the type of the output.
    fn rename_outputs(&mut self, graph: &GraphProto) {
        for output in &graph.output {
            let name = output.name();
            let wanted = self.wanted(output);
            let is_input = graph.input.iter().any(|input| input.name() == name);
            let own = self.own.get(name).copied();
            if let Some(own) = own.filter(|&own| own != wanted && !is_input) {
                let fresh = self.names.fresh(&format!("{name}_{}", suffix(own)));
                self.own.insert(fresh.clone(), own);
                self.renamed.insert(name.to_owned(), fresh);
            }
        }
    }

    /// Adds the Cast from each renamed value to its output.
    fn cast_outputs(&mut self, graph: &GraphProto) {
        for output in &graph.output {
            let Some(value) = self.renamed.get(output.name()).cloned() else {
                continue;
            };
            // Some exporters name nodes after their outputs, so the name of the output may be that
            // of the node which computed it.
            let mut node = cast(&value, output.name(), self.wanted(output));
            node.name = Some(self.names.fresh(&format!("{value}_cast")));
            self.made.push(node);
            self.end_casts += 1;
        }
    }

    fn node(&mut self, node: &mut NodeProto) {
        let first = node.output.iter().find(|name| !name.is_empty());
        let types = first.and_then(|name| self.types.get(name)).cloned();
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(fresh) = self.renamed.get(name) {
                fresh.clone_into(name);
            }
        }
        let Some(types) = types else { return };
        for (name, data_type) in node.input.iter_mut().zip(&types.inputs) {
            if let Some(data_type) = *data_type {
                *name = self.in_type(name, data_type);
            }
        }
        if types.outputs.contains(&Some(self.to)) {
            self.set_attributes(node, types.is_mask);
        }
        self.forget_cast(node);
        if bodies(node).next().is_some() {
            self.widen_captured(node);
        }
    }

    /// Returns the name of a value in the given type, and adds a Cast if necessary.
    fn in_type(&mut self, name: &str, data_type: DataType) -> String {
        let own = self.own.get(name).copied();
        if own.is_none_or(|own| own == data_type) {
            return name.to_owned();
        }
        let key = (name.to_owned(), data_type);
        if let Some(cast) = self.casts.get(&key) {
            return cast.clone();
        }
        let fresh = self.names.fresh(&format!("{name}_{}", suffix(data_type)));
        self.made.push(cast(name, &fresh, data_type));
        self.casts.insert(key, fresh.clone());
        fresh
    }

    /// Replaces float32 by half in the attributes that give the type of a result, and converts the
    /// float32 tensors among the attributes.
    fn set_attributes(&self, node: &mut NodeProto, is_mask: bool) {
        write_default_type(node);
        for attribute in &mut node.attribute {
            let float = i64::from(DataType::Float.code());
            if TYPES.contains(&attribute.name()) && attribute.i == Some(float) {
                attribute.i = Some(self.to.code().into());
            }
            let Some(number) = &mut attribute.t else {
                continue;
            };
            if let Some(half) = self.number(number, is_mask) {
                **number = half;
            }
        }
    }

    /// Replaces a Cast from half to half by an Identity.
    fn forget_cast(&self, node: &mut NodeProto) {
        let own = node.input.first().and_then(|name| self.own.get(name));
        if node.op_type() == "Cast" && own == Some(&self.to) && node.cast_to() == Some(self.to) {
            node.op_type = Some("Identity".to_owned());
            node.attribute.clear();
        }
    }

    /// Converts the tensor of an attribute, such as that of ConstantOfShape, to half. `None` if it
    /// is not float32.
    fn number(&self, tensor: &TensorProto, is_mask: bool) -> Option<TensorProto> {
        if tensor::data_type(tensor).ok()? != DataType::Float {
            return None;
        }
        let numbers = tensor::read_f64(tensor, self.model.externals()).ok()?;
        let in_range = if is_mask {
            numbers.mapv(|number| clamp_mask(number, self.half))
        } else {
            numbers
        };
        tensor::make(tensor.name(), self.to, &in_range.view()).ok()
    }

    /// Makes bodies read the values of outer graphs in float32, as before the conversion.
    fn widen_captured(&mut self, node: &mut NodeProto) {
        let mut captured = HashSet::default();
        bodies(node).for_each(|body| collect_read(body, &mut captured));
        let mut now: HashMap<String, String> = HashMap::default();
        for name in captured {
            let current = self.renamed.get(&name).unwrap_or(&name).clone();
            let wide = self.in_type(&current, DataType::Float);
            if wide != name {
                now.insert(name, wide);
            }
        }
        bodies_mut(node).for_each(|body| rename_read(body, &now));
    }
}

impl EndType {
    /// The type of an input or output that is float32 before the conversion. Sequences and optionals keep their type.
    fn data_type(self, end: &ValueInfoProto, to: HalfType) -> DataType {
        match self {
            EndType::Half if !is_container(end) => to.data_type(),
            _ => DataType::Float,
        }
    }
}

/// Declares the float32 inputs and outputs of a model as half, and converts the initializers of
/// inputs. An output that is an initializer keeps its type.
///
/// # Errors
/// If an initializer cannot be read, or is beyond the range of half.
pub(crate) fn retyped_ends(model: &mut Model, to: HalfType) -> Result<()> {
    let externals = model.externals().clone();
    let graph = model.graph_mut();
    let mut retyped = HashSet::default();
    for input in &mut graph.input {
        if declared_type(input) == Some(DataType::Float) {
            set_type(input, to.data_type());
            retyped.insert(input.name().to_owned());
        }
    }
    for tensor in &mut graph.initializer {
        if retyped.contains(tensor.name()) {
            let numbers = tensor::read_f64(tensor, &externals)?;
            *tensor = tensor::make(tensor.name(), to.data_type(), &numbers.view())?;
        }
    }
    let stored: HashSet<&str> = graph.initializer.iter().map(TensorProto::name).collect();
    for output in &mut graph.output {
        let keeps_type = stored.contains(output.name()) && !retyped.contains(output.name());
        if declared_type(output) == Some(DataType::Float) && !keeps_type {
            set_type(output, to.data_type());
        }
    }
    Ok(())
}

fn set_type(value: &mut ValueInfoProto, data_type: DataType) {
    let declared = value.r#type.as_mut();
    if let Some(tensor) = declared.and_then(|declared| declared.tensor_type.as_mut()) {
        tensor.elem_type = Some(data_type.code());
    }
}

fn suffix(data_type: DataType) -> &'static str {
    if data_type == DataType::Float {
        "wide"
    } else {
        "half"
    }
}

fn cast(value: &str, output: &str, to: DataType) -> NodeProto {
    NodeProto {
        attribute: vec![int("to", to.code().into())],
        ..builder::node(&NodeProto::default(), "Cast", output, &[value], output)
    }
}

/// Collects the names of all values that a body and its nested bodies read.
fn collect_read(body: &GraphProto, names: &mut HashSet<String>) {
    for node in &body.node {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        bodies(node).for_each(|inner| collect_read(inner, names));
    }
    names.extend(body.output.iter().map(|output| output.name().to_owned()));
}

/// Renames the values of outer graphs that a body and its nested bodies read.
fn rename_read(body: &mut GraphProto, now: &HashMap<String, String>) {
    for node in &mut body.node {
        for name in &mut node.input {
            if let Some(other) = now.get(name) {
                other.clone_into(name);
            }
        }
        bodies_mut(node).for_each(|inner| rename_read(inner, now));
    }
    for output in &mut body.output {
        if let Some(other) = now.get(output.name()) {
            output.name = Some(other.clone());
        }
    }
}
