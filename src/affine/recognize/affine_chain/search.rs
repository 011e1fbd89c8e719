//! The search for chains. Each node extends the longest chain that ends in its input, or joins the
//! chains of two inputs.

use crate::affine::Affine;
use crate::affine::recognize::affine_chain::Chain;
use crate::affine::recognize::affine_chain::name_words::Words;
use crate::affine::recognize::affine_chain::step::step;
use crate::affine::recognize::narrowing::Narrowing;
use crate::analysis::Analysis;
use crate::analysis::constants::Constants;
use crate::ir::scope::scope;
use crate::ir::{Graph, NodeId, ValueId};
use crate::onnx::operator::Category;
use crate::shape::facts::{Facts, extent};

/// Finds all maximal chains, in the order of their last nodes.
pub(crate) fn find(analysis: &Analysis) -> Vec<Chain> {
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

/// A value as an affine of another value: a chain without the list of its nodes.
#[derive(Clone)]
struct Form {
    /// The value to which the affine is applied.
    input: ValueId,
    affine: Affine,
    has_branches: bool,
    /// The module path of its last node.
    path: String,
}

struct Search<'s> {
    analysis: &'s Analysis<'s>,
    graph: &'s Graph<'s>,
    facts: &'s Facts,
    constants: &'s Constants<'s>,
    /// For each value, the longest form that ends in it, unless another form has extended it.
    ends: Vec<Option<Box<Form>>>,
    /// For each value, the one or two values whose forms were extended to the form that ends in it.
    /// These values have no other readers, so the nodes of all forms are a forest. The nodes of a
    /// form are found by following these links backward.
    from: Vec<[Option<ValueId>; 2]>,
    widening: Narrowing,
}

impl Search<'_> {
    /// Builds the form that ends in the output of `node`. The forms that it extends are removed
    /// from `ends`. `None` if the output is not an affine of one value.
    fn extend(&mut self, node: NodeId) -> Option<(ValueId, Form)> {
        let output = self
            .graph
            .only_output(node)
            .filter(|_| !self.analysis.activations.contains(node))?;
        let inputs = self.graph.inputs(node).iter().flatten().copied();
        let varying: Vec<ValueId> = inputs
            .filter(|&input| !self.constants.is_constant(input))
            .collect();
        let form = match (self.graph.op(node), &varying[..]) {
            (Some("Add" | "Sub"), &[left, right]) => self.join(node, left, right, output)?,
            // The cheap conditions come first, because `append` reads the elements of constants.
            (_, &[value]) if !self.is_quantized(value) && !self.is_bias(node, value) => {
                self.append(node, value, output)?
            }
            _ => return None,
        };
        Some((output, form))
    }

    /// The form that ends in a node with one varying input. It extends the form that ends in this
    /// input, if the input has no other readers and both have the same module path and the same
    /// axis. Otherwise it begins at the input.
    fn append(&mut self, node: NodeId, value: ValueId, output: ValueId) -> Option<Form> {
        let affine = self.step(node, value, output)?;
        let path = scope(self.graph, node).path;
        if !self.extends(value, &affine, &path) {
            return Some(Form {
                input: value,
                affine,
                has_branches: false,
                path,
            });
        }
        let before = *self.ends[value.index()].take()?;
        self.from[output.index()] = [Some(value), None];
        Some(Form {
            affine: before.affine.then(&affine),
            path,
            ..before
        })
    }

    /// The affine of one node on its varying input. `None` if the node computes no affine, if the
    /// affine varies along several axes, or if it widens the value and a reader needs the wider
    /// value.
    fn step(&mut self, node: NodeId, value: ValueId, output: ValueId) -> Option<Affine> {
        // The result of a BatchNormalization has the shape of its input, even if its shape is not
        // known.
        let keeps_shape = self.facts.shape(value)? == self.facts.shape(output)?
            || self.graph.is(node, "BatchNormalization");
        let affine = step(&self.analysis.at(node), value, output)?;
        let fits = keeps_shape || self.widens_needlessly(&affine, value, output)?;
        (fits && affine.axes().len() <= 1).then_some(affine)
    }

    /// Whether `affine`, in the module `path`, can extend the form that ends in `value`: the value
    /// has one reader, the module paths agree, and both affines vary along the same axis.
    fn extends(&self, value: ValueId, affine: &Affine, path: &str) -> bool {
        self.end(value).is_some_and(|before| {
            self.graph.readers(value).len() == 1
                && same_module(&before.path, path)
                && same_axis(&before.affine, affine)
        })
    }

    /// The form that ends in a value. `None` if no form ends there, or if another form has extended
    /// it.
    fn end(&self, value: ValueId) -> Option<&Form> {
        self.ends[value.index()].as_deref()
    }

    /// Whether a factor broadcasts a value to more elements than any reader needs. The factor must
    /// widen the value only along the axis along which the factor varies.
    fn widens_needlessly(
        &mut self,
        factor: &Affine,
        value: ValueId,
        output: ValueId,
    ) -> Option<bool> {
        let (before, behind) = (self.facts.shape(value)?, self.facts.shape(output)?);
        let axes = factor.axes();
        let widens_only_there = before.len() == behind.len()
            && (0..before.len()).all(|axis| match axes.contains(&axis) {
                true => extent(&before[axis]) == Some(1),
                false => before[axis] == behind[axis],
            });
        Some(
            widens_only_there
                && factor.has_no_shift()
                && self.widening.is_needless(self.analysis, value, output),
        )
    }

    /// Completes a form to a chain, with the list of its nodes and their words.
    fn chain(&self, output: ValueId, form: Form) -> Chain {
        let mut values = vec![output];
        let mut nodes = vec![];
        while let Some(value) = values.pop() {
            nodes.extend(self.graph.producer(value).map(|(node, _)| node));
            values.extend(self.from[value.index()].into_iter().flatten());
        }
        nodes.sort_by_key(|&node| self.graph.place(node));
        let Words { words, path } = Words::from_nodes(self.graph, self.constants, &nodes);
        Chain {
            input: form.input,
            output,
            affine: form.affine,
            has_branches: form.has_branches,
            factor_axis: self.factor_axis(&nodes),
            nodes,
            words,
            path,
        }
    }

    /// The form of `u + v` or `u − v`, if both operands are affines of one value, the base, and the
    /// sum varies along at most one axis. An operand that is not the base itself must have no other
    /// readers.
    fn join(
        &mut self,
        node: NodeId,
        left: ValueId,
        right: ValueId,
        output: ValueId,
    ) -> Option<Form> {
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
        let [a, b] = [left, right].map(|value| self.branch(value, base, rank));
        let affine = match self.graph.op(node)? {
            "Add" => Affine::new(&a.scale + &b.scale, &a.shift + &b.shift),
            _ => Affine::new(&a.scale - &b.scale, &a.shift - &b.shift),
        };
        if affine.axes().len() > 1 {
            return None;
        }
        for branch in branches.iter().flatten() {
            self.ends[branch.index()] = None;
        }
        self.from[output.index()] = branches;
        Some(Form {
            input: base,
            affine,
            has_branches: true,
            path: scope(self.graph, node).path,
        })
    }

    /// The affine that computes `value` from `base`: the identity if `value` is `base`.
    fn branch(&self, value: ValueId, base: ValueId, rank: usize) -> Affine {
        match self.end(value) {
            Some(form) if value != base => form.affine.clone(),
            _ => Affine::identity(rank),
        }
    }

    /// Whether a value is a result of a DynamicQuantizeLinear, such as its scale. Engines expect
    /// the operators that read this scale to be unchanged, so these operators form no chain.
    fn is_quantized(&self, value: ValueId) -> bool {
        let producer = self.graph.producer(value);
        producer.is_some_and(|(node, _)| self.graph.is(node, "DynamicQuantizeLinear"))
    }

    /// Whether an Add is the bias of the linear operator right before it.
    fn is_bias(&self, node: NodeId, value: ValueId) -> bool {
        let made_by = self
            .graph
            .producer(value)
            .and_then(|(producer, _)| self.graph.category(producer));
        self.graph.is(node, "Add") && made_by.is_some_and(Category::is_product)
    }

    /// The axis along which the constant factor of a node lies, for the first node whose factor is
    /// not a scalar. `None` if all factors are scalars.
    fn factor_axis(&self, nodes: &[NodeId]) -> Option<usize> {
        nodes.iter().find_map(|&node| self.factor_axis_of(node))
    }

    /// The axis of the result of a Mul or Div along which its constant factor lies. `None` if the
    /// factor is a scalar.
    fn factor_axis_of(&self, node: NodeId) -> Option<usize> {
        let graph = self.graph;
        if !matches!(graph.op(node)?, "Mul" | "Div") {
            return None;
        }
        let rank = self.facts.rank(graph.only_output(node)?)?;
        let mut inputs = graph.inputs(node).iter().flatten().copied();
        inputs.find_map(|input| {
            let shape = self
                .facts
                .shape(input)
                .filter(|_| self.constants.is_constant(input))?;
            let axis = shape.iter().position(|dim| extent(dim) != Some(1))?;
            (axis + rank).checked_sub(shape.len())
        })
    }
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
