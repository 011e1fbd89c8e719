//! Chains of element-wise operators that together are one per-channel affine.
//!
//! `x / √(σ²+ε) · γ + β`, in any order of operators and operands, BatchNormalization with fixed
//! statistics, and sums of such branches over one value (`BN(x) + α·x`), are all `s·x + t`.

use ndarray::Axis;

use crate::affine::Affine;
use crate::affine::recognize::widening::Narrowing;
use crate::affine::recognize::{Family, KINDS, Kind, NORM, Part, Site, View};
use crate::analysis::Analysis;
use crate::analysis::constants::Constants;
use crate::analysis::node_view::At;
use crate::hash::HashSet;
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::onnx::tract_quirks::batch_norm_trains;
use crate::recipe::Numbers;
use crate::refusal::{Reason, Refusal};
use crate::shape::facts::{Facts, Shape, extent};

/// An affine on one value, as the nodes that compute it.
#[derive(Debug, Clone)]
pub struct Chain {
    /// The value it acts on.
    pub input: ValueId,
    /// The value it makes.
    pub output: ValueId,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeId>,
    /// The affine of the nodes.
    pub affine: Affine,
    /// Whether it is a sum of several branches over `input`.
    pub branches: bool,
    /// The axis along which its factors lie, even where all of them are equal, as before training.
    pub spread: Option<usize>,
    /// Words that tell where it came from: classes, module path, names of its parameters.
    pub words: Vec<String>,
    /// The module path of its first node.
    pub path: String,
}

impl Chain {
    /// Whether any of its words begins with one of these.
    pub fn mentions(&self, starts: &[&str]) -> bool {
        self.words
            .iter()
            .any(|word| starts.iter().any(|start| word.starts_with(start)))
    }

    /// Whether it scales each channel: a bare shift is a bias, and one number for all channels is a
    /// normalizer only by name.
    pub fn is_per_channel(&self) -> bool {
        let named = || {
            self.mentions(&[NORM, "running_"])
                || KINDS.iter().any(|kind| self.mentions(kind.names()))
        };
        self.affine.scale.len() > 1
            || (self.nodes.len() > 1 && !self.affine.has_no_scale() && named())
    }

    /// Whether it holds a BatchNormalization.
    pub fn has_batch_norm(&self, graph: &Graph) -> bool {
        self.nodes
            .iter()
            .any(|&node| graph.is(node, "BatchNormalization"))
    }

    /// The only axis along which the affine varies; `None` for zero or several axes.
    pub fn axis(&self) -> Option<usize> {
        match self.affine.axes()[..] {
            [axis] => Some(axis),
            _ => None,
        }
    }

    /// The chain as an affine of a site.
    pub fn part(&self) -> Part {
        Part {
            affine: self.affine.clone(),
            input: self.input,
            output: self.output,
            nodes: self.nodes.clone(),
            resets: vec![],
        }
    }

    /// The chain as a site of a kind whose statistics are fixed.
    pub fn site(&self, view: &View, kind: Kind) -> Site {
        let graph = view.graph;
        let axis = self.axis().or(self.spread).unwrap_or(0);
        let along = |numbers: &Numbers| numbers.shape().get(axis).copied().unwrap_or(1);
        let numbers = || along(&self.affine.scale).max(along(&self.affine.shift));
        let channels = view.facts.extent(self.output, axis).unwrap_or_else(numbers);
        let finite = self.affine.is_finite();
        let name = if self.path.is_empty() {
            graph.name(self.nodes[0]).to_owned()
        } else {
            self.path.clone()
        };
        Site {
            kind,
            name,
            channels,
            axis,
            nodes: self.nodes.clone(),
            pre: None,
            post: Some(self.part()),
            replacement: None,
            core: None,
            refusal: (!finite).then(|| Refusal::new(Reason::NotFinite, graph.name(self.nodes[0]))),
        }
    }
}

/// A kind of fixed statistics.
pub const fn offline(name: &'static str) -> Kind {
    Kind::new(name, Family::Offline)
}

/// Finds all maximal chains, in the order of their last nodes.
pub fn find(analysis: &Analysis) -> Vec<Chain> {
    let Analysis {
        graph,
        facts,
        constants,
        ..
    } = analysis;
    let mut search = Search {
        analysis,
        graph,
        facts,
        constants,
        ends: vec![None; graph.value_count()],
        from: vec![[None; 2]; graph.value_count()],
        widening: Narrowing::default(),
    };
    for &node in graph.order() {
        if let Some((output, form)) = search.extend(node) {
            search.ends[output.index()] = Some(Box::new(form));
        }
    }
    let mut ends = std::mem::take(&mut search.ends);
    let outputs = graph
        .order()
        .iter()
        .filter_map(|&node| graph.only_output(node));
    outputs
        .filter_map(|output| Some(search.chain(output, *ends[output.index()].take()?)))
        .collect()
}

/// The affine that a value is of another one: a chain without the list of its nodes.
#[derive(Clone)]
struct Form {
    /// The value it acts on.
    input: ValueId,
    affine: Affine,
    branches: bool,
    /// The module path of its last node.
    path: String,
}

struct Search<'s> {
    analysis: &'s Analysis<'s>,
    graph: &'s Graph<'s>,
    facts: &'s Facts,
    constants: &'s Constants<'s>,
    /// The longest forms, by the values that they end in.
    ends: Vec<Option<Box<Form>>>,
    /// The values whose forms that of a value went on from. Nothing else reads these: the nodes of all forms
    /// are a forest, and those of one are found by walking back.
    from: Vec<[Option<ValueId>; 2]>,
    widening: Narrowing,
}

impl Search<'_> {
    /// The form that ends in a node, which replaces the forms that it extends.
    fn extend(&mut self, node: NodeId) -> Option<(ValueId, Form)> {
        let graph = self.graph;
        let output = graph
            .only_output(node)
            .filter(|_| !self.analysis.activations.contains(node))?;
        let varying: Vec<ValueId> = graph
            .inputs(node)
            .iter()
            .flatten()
            .copied()
            .filter(|&v| !self.constants.is_constant(v))
            .collect();
        match (graph.op(node), &varying[..]) {
            (Some("Add" | "Sub"), &[left, right]) => self.join(node, left, right, output),
            // The scale of a dynamic quantization, which engines look for where it stands.
            (_, &[value])
                if graph
                    .producer(value)
                    .is_some_and(|(of, _)| graph.is(of, "DynamicQuantizeLinear")) =>
            {
                None
            }
            // Constants are read only of what may be a step.
            (_, &[value]) if self.is_bias(node, value) => None,
            (_, &[value]) => {
                let rank = self.facts.rank(output)?;
                let (before, behind) = (self.facts.shape(value)?, self.facts.shape(output)?);
                let step = self.step(node, value, rank)?;
                // The normalized value has the axes of its constants.
                let is_alike = before == behind || graph.is(node, "BatchNormalization");
                if !is_alike && !self.widens(&step, value, output, &before, &behind) {
                    return None;
                }
                if step.axes().len() > 1 {
                    return None;
                }
                let path = scope(graph, node).path;
                let goes_on = self.end(value).is_some_and(|before| {
                    graph.readers(value).len() == 1
                        && same_module(&before.path, &path)
                        && same_axis(&before.affine, &step)
                });
                let form = match goes_on.then(|| self.ends[value.index()].take()).flatten() {
                    None => Form {
                        input: value,
                        affine: step,
                        branches: false,
                        path,
                    },
                    Some(before) => {
                        let before = *before;
                        self.from[output.index()] = [Some(value), None];
                        Form {
                            affine: before.affine.then(&step),
                            path,
                            ..before
                        }
                    }
                };
                Some((output, form))
            }
            _ => None,
        }
    }

    /// The form that ends in a value.
    fn end(&self, value: ValueId) -> Option<&Form> {
        self.ends[value.index()].as_deref()
    }

    /// Whether a factor makes a value wider along its own axis only, and need not.
    fn widens(
        &mut self,
        step: &Affine,
        value: ValueId,
        output: ValueId,
        before: &Shape,
        behind: &Shape,
    ) -> bool {
        let axes = step.axes();
        let only_there = before.len() == behind.len()
            && (0..before.len()).all(|axis| match axes.contains(&axis) {
                true => extent(&before[axis]) == Some(1),
                false => before[axis] == behind[axis],
            });
        only_there && step.has_no_shift() && self.widening.is_needless(self.analysis, value, output)
    }

    /// The chain that a form is.
    fn chain(&self, output: ValueId, form: Form) -> Chain {
        let mut values = vec![output];
        let mut nodes = vec![];
        while let Some(value) = values.pop() {
            nodes.extend(self.graph.producer(value).map(|(node, _)| node));
            values.extend(self.from[value.index()].into_iter().flatten());
        }
        nodes.sort_by_key(|&node| self.graph.place(node));
        let Form {
            input,
            affine,
            branches,
            ..
        } = form;
        let (words, path) = self.names(&nodes);
        let spread = self.spread(&nodes);
        Chain {
            input,
            output,
            nodes,
            affine,
            branches,
            spread,
            words,
            path,
        }
    }

    /// The affine of one node on its varying input.
    fn step(&self, node: NodeId, value: ValueId, rank: usize) -> Option<Affine> {
        let graph = self.graph;
        let at = self.analysis.at(node);
        let first = graph.input(node, 0) == Some(value);
        let constant = || -> Option<Numbers> {
            let slot = if first { 1 } else { 0 };
            // Only parameters, not tensors as large as the value itself; or such a parameter for each place.
            let extents: Vec<usize> = at
                .shape(slot)
                .ok()?
                .iter()
                .map(extent)
                .collect::<Option<_>>()?;
            let numbers = match extents.iter().filter(|&&extent| extent != 1).count() {
                0 | 1 => at.numbers(slot).ok()?,
                _ => alike(extents, || at.numbers(slot).ok())?,
            };
            numbers.align(rank)
        };
        let number = |number: f64| Numbers::number(number, rank);
        let affine = match graph.op(node)? {
            "Neg" => Affine::scale(number(-1.0)),
            "Mul" => Affine::scale(constant()?),
            "Div" if first => Affine::scale(&number(1.0) / &constant()?),
            "Add" => Affine::shift(constant()?),
            "Sub" if first => Affine::shift(-&constant()?),
            "Sub" => Affine::new(number(-1.0), constant()?),
            "BatchNormalization" if first => return batch_norm(&at).ok(),
            _ => return None,
        };
        at.only_attributes(&[]).ok()?;
        // The constant must not be what gives the result more axes.
        let shape = self.facts.shape(graph.only_output(node)?)?;
        if shape.len() != self.facts.rank(value)? {
            return None;
        }
        let fits = affine.axes().iter().all(|&axis| {
            extent(&shape[axis]) == Some(affine.scale.shape()[axis].max(affine.shift.shape()[axis]))
        });
        fits.then_some(affine)
    }

    /// `u + v` or `u − v`, where both are affines of one value that nothing else in between reads.
    fn join(
        &mut self,
        node: NodeId,
        left: ValueId,
        right: ValueId,
        output: ValueId,
    ) -> Option<(ValueId, Form)> {
        let rank = self.facts.rank(output)?;
        let [base, other] =
            [left, right].map(|value| self.end(value).map_or(value, |form| form.input));
        if left == right || base != other || self.facts.shape(base)? != self.facts.shape(output)? {
            return None;
        }
        let branches = [left, right].map(|value| Some(value).filter(|&value| value != base));
        if !branches
            .iter()
            .flatten()
            .all(|&value| self.graph.readers(value).len() == 1)
        {
            return None;
        }
        let affine_of = |value: ValueId| match self.end(value) {
            Some(form) if value != base => form.affine.clone(),
            _ => Affine::identity(rank),
        };
        let (a, b) = (affine_of(left), affine_of(right));
        let affine = match self.graph.op(node)? {
            "Add" => Affine::new(&a.scale + &b.scale, &a.shift + &b.shift),
            _ => Affine::new(&a.scale - &b.scale, &a.shift - &b.shift),
        };
        if affine.axes().len() > 1 {
            return None;
        }
        branches
            .iter()
            .flatten()
            .for_each(|value| self.ends[value.index()] = None);
        self.from[output.index()] = branches;
        let path = scope(self.graph, node).path;
        Some((
            output,
            Form {
                input: base,
                affine,
                branches: true,
                path,
            },
        ))
    }

    /// Whether an Add is the bias of the linear operator right before it.
    fn is_bias(&self, node: NodeId, value: ValueId) -> bool {
        let made_by = self
            .graph
            .producer(value)
            .and_then(|(producer, _)| self.graph.category(producer));
        self.graph.is(node, "Add") && made_by.is_some_and(Category::is_product)
    }

    /// Words that tell where nodes came from, and the module path of the first.
    fn names(&self, nodes: &[NodeId]) -> (Vec<String>, String) {
        let mut words = vec![];
        let mut word = |text: &str| {
            words.extend(text.split(['.', '/', ':']).map(|part| part.to_lowercase()));
        };
        let mut path = String::new();
        for &node in nodes {
            let scope = scope(self.graph, node);
            word(&scope.path);
            scope.classes.iter().for_each(|class| word(class));
            for input in self.graph.inputs(node).iter().flatten() {
                self.origins(*input, &mut |name| word(name));
            }
            if path.is_empty() {
                path = scope.path;
            }
        }
        words.sort_unstable();
        words.dedup();
        (words, path)
    }

    fn spread(&self, nodes: &[NodeId]) -> Option<usize> {
        let along = |&node: &NodeId| {
            let constant = |value: &&ValueId| self.constants.is_constant(**value);
            let operands = self.graph.inputs(node).iter().flatten().filter(constant);
            let rank = self.facts.rank(self.graph.only_output(node)?)?;
            let of = |&operand: &ValueId| {
                let shape = self.facts.shape(operand)?;
                let axis = shape.iter().position(|dim| extent(dim) != Some(1))?;
                (axis + rank).checked_sub(shape.len())
            };
            match self.graph.op(node)? {
                "Mul" | "Div" => operands.filter_map(of).next(),
                _ => None,
            }
        };
        nodes.iter().find_map(along)
    }

    /// The names of the initializers that a constant is computed from.
    fn origins(&self, value: ValueId, found: &mut impl FnMut(&str)) {
        let mut open = vec![value];
        let mut seen = HashSet::default();
        while let Some(value) = open.pop() {
            if !self.constants.is_constant(value) || !seen.insert(value) || seen.len() > 64 {
                continue;
            }
            match self.graph.producer(value) {
                Some((node, _)) => open.extend(self.graph.inputs(node).iter().flatten()),
                None => found(self.graph.value_name(value)),
            }
        }
    }
}

/// Constants of more numbers are not read to see whether they repeat.
const LARGEST: usize = 1 << 18;

/// A tensor that is the same along all axes but one, without these.
fn alike(extents: Vec<usize>, numbers: impl Fn() -> Option<Numbers>) -> Option<Numbers> {
    let count = extents
        .iter()
        .try_fold(1_usize, |count, &extent| count.checked_mul(extent))?;
    let mut numbers = (1..=LARGEST).contains(&count).then(numbers)??;
    for axis in 0..extents.len() {
        let first = numbers.index_axis(Axis(axis), 0);
        if numbers.shape()[axis] > 1 && numbers.axis_iter(Axis(axis)).all(|other| other == first) {
            numbers = numbers.pick(axis, [Some(0)])?;
        }
    }
    (numbers
        .shape()
        .iter()
        .filter(|&&extent| extent != 1)
        .count()
        <= 1)
        .then_some(numbers)
}

fn same_module(one: &str, other: &str) -> bool {
    one == other || one.is_empty() || other.is_empty()
}

fn same_axis(one: &Affine, other: &Affine) -> bool {
    let mut axes = one.axes();
    axes.extend(other.axes());
    axes.dedup();
    axes.len() <= 1
}

/// Equation 1 of the UN paper as `s·x + t`: `s = γ/√(σ²+ε)`, `t = β − s·μ`, on axis 1.
///
/// # Errors
/// Why this BatchNormalization is no affine with constants.
pub fn batch_norm(at: &At) -> Result<Affine, Reason> {
    at.only_attributes(&["epsilon", "momentum", "training_mode", "spatial"])?;
    let extra = at.graph.outputs(at.node).iter().skip(1).flatten();
    let trains = batch_norm_trains(at.proto(), at.opset());
    if trains.map_err(|_| Reason::Attribute("training_mode".into()))?
        || extra
            .copied()
            .any(|output| !at.graph.readers(output).is_empty())
    {
        return Err(Reason::TrainingMode);
    }
    if at.attr("spatial", 1)? != 1 {
        return Err(Reason::Attribute("spatial".into()));
    }
    let epsilon = at.attr_float("epsilon", 1e-5)?;
    let (gamma, beta, mean, var) = (
        at.numbers(1)?,
        at.numbers(2)?,
        at.numbers(3)?,
        at.numbers(4)?,
    );
    // There are as many channels as numbers for them.
    let rank = at.rank(0)?;
    let channels = at.facts.extent(at.input(0)?, 1).unwrap_or(gamma.len());
    if rank < 2
        || [&gamma, &beta, &mean, &var]
            .iter()
            .any(|numbers| numbers.shape() != [channels])
    {
        return Err(Reason::UnknownShape);
    }
    let var = &var + &Numbers::number(epsilon, 1);
    if !var.iter().all(|&var| var > 0.0) {
        return Err(Reason::BadStatistics);
    }
    let scale = &gamma / &var.sqrt();
    let shift = &beta - &(&scale * &mean);
    let mut shape = vec![1; rank];
    shape[1] = channels;
    let on_axis_1 = |numbers: Numbers| numbers.reshape(&shape).ok_or(Reason::UnknownShape);
    let affine = Affine::new(on_axis_1(scale)?, on_axis_1(shift)?);
    if affine.is_finite() {
        Ok(affine)
    } else {
        Err(Reason::NotFinite)
    }
}
