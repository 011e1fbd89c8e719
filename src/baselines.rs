//! Baselines of a model that show the cost of its normalizers: one with LayerNorm instead of them,
//! and one without any normalizer.
//!
//! The baselines do not compute the function of the model, and are only timed. Opaque normalizers
//! are inlined first, so that the baselines run even if the model does not.

use std::collections::{BTreeSet, HashMap};

use ndarray::{Array1, ArrayD, arr0};

use crate::affine::Affine;
use crate::affine::propagate::rule_table::rule_of;
use crate::affine::recognize::{self, Family, Part, Site, View, layer_norm};
use crate::analysis::Analysis;
use crate::analysis::node_view::At;
use crate::error::Result;
use crate::ir::editor::Editor;
use crate::ir::{NodeId, ValueId, builder};
use crate::onnx::Model;
use crate::onnx::operator::LAYER_NORMALIZATION;
use crate::onnx::proto::{AttributeProto, NodeProto};
use crate::onnx::tensor::{self, DataType};
use crate::passes::inline::lower;
use crate::passes::simplify::{is_movement, simplify_known};
use crate::recipe::Numbers;

/// The baselines of a model.
pub struct Baselines {
    /// The model with a LayerNorm in place of every other normalizer, over the same channels and
    /// with the same γ and β. Papers on normalizers compare with this model.
    ///
    /// The LayerNorm is inserted where the channels are last, as in a network that was written with
    /// LayerNorm. Movements that only moved the channels to another axis for the old normalizer are
    /// removed.
    pub ln_twin: Model,
    /// The model without its normalizers. Its cost is a lower bound for that of any folded model.
    pub floor: Model,
    /// The names of the nodes of all normalizers, including those of the twin.
    pub normalizers: BTreeSet<String>,
}

impl Baselines {
    /// Builds the baselines.
    ///
    /// # Errors
    /// If the model's graph is invalid.
    ///
    /// ```
    /// use unfold::onnx::Model;
    /// use unfold::Baselines;
    /// let variants = Baselines::new(&Model::open("models/digits/un-dynamo.onnx")?)?;
    /// assert!(Baselines::new(&variants.floor)?.normalizers.is_empty());
    /// let twin = Baselines::new(&variants.ln_twin)?;
    /// assert!(twin.normalizers.is_subset(&variants.normalizers));
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    pub fn new(model: &Model) -> Result<Self> {
        look(model, |view, sites| {
            let (mut floor, mut twin) = (Remaking::new(view), Remaking::new(view));
            for site in sites.iter().filter(|site| is_normalizer(site)) {
                let mut blocks = blocks(view, site).unwrap_or_default();
                blocks.iter().for_each(|block| floor.take_out(block));
                let last = blocks.pop().filter(|_| site.kind.name != layer_norm::NAME);
                let Some(last) = last else { continue };
                blocks.iter().for_each(|block| twin.take_out(block));
                twin.put_layer_norm(site, &last);
            }
            let mut normalizers = names(view, sites);
            normalizers.append(&mut twin.norms);
            Self {
                ln_twin: twin.finish(),
                floor: floor.finish(),
                normalizers,
            }
        })
    }
}

/// The names of the nodes of a model's normalizers.
///
/// # Errors
/// If the model's graph is invalid.
pub(crate) fn normalizers(model: &Model) -> Result<BTreeSet<String>> {
    look(model, names)
}

fn names(view: &View, sites: &[Site]) -> BTreeSet<String> {
    let nodes = sites
        .iter()
        .filter(|site| is_normalizer(site))
        .flat_map(|site| &site.nodes);
    nodes
        .map(|&node| view.graph.name(node).to_owned())
        .collect()
}

fn look<T>(model: &Model, see: impl FnOnce(&View, &[Site]) -> T) -> Result<T> {
    let lowered = lower(model, &|_, _| false)?;
    let analysis = Analysis::new(lowered.as_ref().map_or(model, |lowered| &lowered.model))?;
    let view = View::new(&analysis);
    Ok(see(&view, &recognize::find(&view)))
}

fn is_normalizer(site: &Site) -> bool {
    !matches!(site.kind.family, Family::Scale | Family::Linear)
}

/// Nodes that compute one value from another one of equal shape.
struct Block {
    nodes: Vec<NodeId>,
    input: ValueId,
    output: ValueId,
}

impl Block {
    fn from_part(part: &Part) -> Self {
        Block {
            nodes: part.nodes.clone(),
            input: part.input,
            output: part.output,
        }
    }
}

/// The blocks of a site in the order of execution: the affine before the core, the core, and the
/// affine after it. There may be movements between them. `None` if the core does not have a single
/// input.
fn blocks(view: &View, site: &Site) -> Option<Vec<Block>> {
    let parts: Vec<&Part> = site
        .pre
        .iter()
        .chain(&site.post)
        .filter(|part| !part.nodes.is_empty())
        .collect();
    let mut core = site.nodes.clone();
    core.retain(|node| !parts.iter().any(|part| part.nodes.contains(node)));
    let mut blocks: Vec<Block> = parts.into_iter().map(Block::from_part).collect();
    if !core.is_empty() {
        blocks.push(core_block(view, core)?);
    }
    blocks.sort_by_key(|block| {
        view.graph
            .producer(block.output)
            .map(|(node, _)| view.graph.place(node))
    });
    Some(blocks)
}

/// The axis of the channels in the output of a block. This axis may differ from the axis of the
/// site if movements belong to the block.
fn axis(site: &Site, block: &Block) -> usize {
    let part = site
        .post
        .as_ref()
        .filter(|part| part.output == block.output);
    match part.map(|part| part.affine.axes()).as_deref() {
        Some(&[axis]) => axis,
        _ => site.axis,
    }
}

fn core_block(view: &View, nodes: Vec<NodeId>) -> Option<Block> {
    let graph = view.graph;
    let last = nodes
        .iter()
        .copied()
        .max_by_key(|&node| graph.place(node))?;
    let output = graph.output(last, 0)?;
    let mut inputs = BTreeSet::new();
    for &value in nodes
        .iter()
        .flat_map(|&node| graph.inputs(node).iter().flatten())
    {
        let producer = graph.producer(value);
        let is_inner = producer.is_some_and(|(node, _)| nodes.contains(&node));
        let is_constant = view.constants.is_constant(value);
        if !is_inner && !is_constant && view.facts.shape(value) == view.facts.shape(output) {
            inputs.insert(value);
        }
    }
    let [input] = inputs.into_iter().collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(Block {
        nodes,
        input,
        output,
    })
}

/// A model whose sites are being replaced.
struct Remaking<'v, 'a> {
    view: &'v View<'a>,
    editor: Editor<'a>,
    /// The names of the values that are read in place of removed values. Simplification begins at
    /// these values.
    seeds: Vec<String>,
    /// Maps the name of each new value to a value of equal shape.
    made: HashMap<String, ValueId>,
    /// The names of the nodes of new LayerNorms.
    norms: BTreeSet<String>,
}

impl<'v, 'a> Remaking<'v, 'a> {
    fn new(view: &'v View<'a>) -> Self {
        let editor = Editor::new(view.graph);
        Remaking {
            view,
            editor,
            seeds: vec![],
            made: HashMap::new(),
            norms: BTreeSet::new(),
        }
    }

    fn name(&self, value: ValueId) -> &'a str {
        self.view.graph.value_name(value)
    }

    /// Lets the readers of a block's output read the block's input instead. Nodes that then have no
    /// readers are removed later.
    fn take_out(&mut self, block: &Block) {
        let source = self.name(block.input).to_owned();
        self.replace(block, &source);
    }

    fn replace(&mut self, block: &Block, source: &str) {
        let maker = self.view.maker(block.output);
        self.editor
            .remove(maker.as_slice(), self.name(block.output), source);
        self.seeds.push(source.to_owned());
    }

    fn put_layer_norm(&mut self, site: &Site, block: &Block) {
        let rank = self.view.facts.rank(block.output).unwrap_or(site.axis + 1);
        let axis = axis(site, block);
        let gamma_beta = self.gamma_beta(site, rank);
        match self.channels_last(site, axis, block, rank) {
            Some((value, None)) => {
                let norm = self.layer_norm(site, value, gamma_beta);
                self.replace(block, &norm);
            }
            Some((value, Some(mover))) => {
                let norm = self.layer_norm(site, value, gamma_beta);
                self.editor.set_input(mover, 0, &norm);
                self.seeds.push(norm);
                self.take_out(block);
            }
            None => {
                let norm = self.layer_norm_across(site, axis, block.input, rank, gamma_beta);
                self.replace(block, &norm);
            }
        }
    }

    /// The earliest value whose last axis is the channels, and the movement that reads it. The
    /// value is the block's input, or a value from which only movements without other readers
    /// compute this input. The movement is `None` if the value is the input itself. The result is
    /// `None` if no such value has its channels last.
    fn channels_last(
        &self,
        site: &Site,
        axis: usize,
        block: &Block,
        rank: usize,
    ) -> Option<(ValueId, Option<NodeId>)> {
        let graph = self.view.graph;
        let mut shape = vec![1; rank];
        *shape.get_mut(axis)? = site.channels;
        let count = Array1::from_iter((0..site.channels).map(|channel| channel as f64 + 2.0));
        let numbered = Numbers::literal(count.clone().into_dyn()).reshape(&shape)?;
        let (mut value, mut channels, mut below) =
            (block.input, Affine::scale(numbered), block.nodes.clone());
        let mut found = None;
        let mut mover = None;
        loop {
            let last = channels.rank().checked_sub(1)?;
            if channels.axes() == [last] && channels.scale.iter().eq(&count) {
                found = Some((value, mover));
            }
            let next = self
                .view
                .maker(value)
                .filter(|&node| is_movement(graph.node(node)));
            let Some(node) = next.filter(|_| self.view.is_read_by_no_other(value, &below)) else {
                return found;
            };
            let at = self.view.at(node);
            let step = rule_of(&at)
                .and_then(|rule| rule.backward(&at, 0, &channels))
                .ok();
            let way = step.and_then(|step| step.ways.into_iter().next()?.into_iter().next());
            let (Some((_, before)), Some(input)) = (way, graph.input(node, 0)) else {
                return found;
            };
            (value, channels, below, mover) = (input, before, vec![node], Some(node));
        }
    }

    /// The γ and β of a site, without the fixed statistics that the affine of the site may include.
    fn gamma_beta(&self, site: &Site, rank: usize) -> Affine {
        let whole = site
            .post
            .as_ref()
            .map_or_else(|| Affine::identity(rank), |part| part.affine.clone());
        // If the part has movements, its other operators may have a different rank than its output.
        let own: Vec<NodeId> = site
            .post
            .iter()
            .flat_map(|part| &part.nodes)
            .filter(|&&node| !is_movement(self.view.graph.node(node)))
            .copied()
            .collect();
        let made = own
            .first()
            .and_then(|&node| self.view.graph.output(node, 0));
        let rank = made
            .and_then(|made| self.view.facts.rank(made))
            .unwrap_or(rank);
        let mut affine = Affine::identity(rank);
        for node in own {
            // A sum of branches has no separate γ and β, so the whole affine is used.
            let Some(step) = self.affine_of(node, site.axis, rank) else {
                return whole;
            };
            affine = affine.then(&step);
        }
        if site.post.as_ref().is_some_and(|part| part.nodes.is_empty()) {
            whole
        } else {
            affine
        }
    }

    /// The part of γ and β that a node applies. A Mul, an Add and a BatchNormalization may apply
    /// some; a Div and a Sub apply the identity. `None` for all other operators.
    fn affine_of(&self, node: NodeId, axis: usize, rank: usize) -> Option<Affine> {
        let at = self.view.at(node);
        match self.view.graph.op(node)? {
            "Mul" => constant_operand(&at, rank).map(Affine::scale),
            "Add" => constant_operand(&at, rank).map(Affine::shift),
            "Div" | "Sub" => Some(Affine::identity(rank)),
            "BatchNormalization" => {
                let gamma = on_axis(&at, 1, axis, rank)?;
                Some(Affine::new(gamma, on_axis(&at, 2, axis, rank)?))
            }
            _ => None,
        }
    }

    /// Adds a LayerNorm over the last axis of a value, and returns the name of its output.
    fn layer_norm(&mut self, site: &Site, value: ValueId, gamma_beta: Affine) -> String {
        let input = self.editor.current(self.name(value));
        let made = self.write(site, value, &input, gamma_beta);
        self.made.insert(made.clone(), value);
        made
    }

    /// Adds a LayerNorm over the axis `axis` between two Transposes, which move this axis to the
    /// end and back.
    fn layer_norm_across(
        &mut self,
        site: &Site,
        axis: usize,
        value: ValueId,
        rank: usize,
        gamma_beta: Affine,
    ) -> String {
        let (axis, last) = (axis as i64, rank as i64 - 1);
        let there: Vec<i64> = (0..=last)
            .filter(|&other| other != axis)
            .chain([axis])
            .collect();
        let back: Vec<i64> = (0..axis).chain([last]).chain(axis..last).collect();
        let input = self.editor.current(self.name(value));
        let moved = self.node(
            value,
            "Transpose",
            &[&input],
            site,
            vec![builder::ints("perm", &there)],
        );
        let normed = self.write(site, value, &moved, gamma_beta);
        self.node(
            value,
            "Transpose",
            &[&normed],
            site,
            vec![builder::ints("perm", &back)],
        )
    }

    /// Adds the operators of a LayerNorm, or a single LayerNormalization if the operator set has
    /// it.
    fn write(&mut self, site: &Site, value: ValueId, input: &str, gamma_beta: Affine) -> String {
        let data_type = self.view.facts.data_type(value).unwrap_or(DataType::Float);
        let gamma = self.parameter(site, "weight", data_type, &gamma_beta.scale);
        let beta = self.parameter(site, "bias", data_type, &gamma_beta.shift);
        if self.view.graph.model().own_opset() >= LAYER_NORMALIZATION {
            return self.step(site, value, "LayerNormalization", &[input, &gamma, &beta]);
        }
        let epsilon =
            tensor::make("", data_type, &arr0(1e-5).into_dyn().view()).unwrap_or_default();
        let epsilon = self
            .editor
            .add_constant(&format!("{}.epsilon", site.name), epsilon);
        let mean = self.step(site, value, "ReduceMean", &[input]);
        let centred = self.step(site, value, "Sub", &[input, &mean]);
        let square = self.step(site, value, "Mul", &[&centred, &centred]);
        let variance = self.step(site, value, "ReduceMean", &[&square]);
        let shifted = self.step(site, value, "Add", &[&variance, &epsilon]);
        let root = self.step(site, value, "Sqrt", &[&shifted]);
        let normed = self.step(site, value, "Div", &[&centred, &root]);
        let scaled = self.step(site, value, "Mul", &[&normed, &gamma]);
        self.step(site, value, "Add", &[&scaled, &beta])
    }

    /// Stores a parameter with an element for each channel, and returns its name.
    fn parameter(
        &mut self,
        site: &Site,
        what: &str,
        data_type: DataType,
        array: &ArrayD<f64>,
    ) -> String {
        let flat = match array.len() {
            1 => {
                let number = array.iter().copied().next().unwrap_or_default();
                Array1::from_elem(site.channels, number)
            }
            _ => Array1::from_iter(array.iter().copied()),
        };
        let tensor = tensor::make("", data_type, &flat.into_dyn().view()).unwrap_or_default();
        self.editor
            .add_constant(&format!("{}.{what}", site.name), tensor)
    }

    /// Adds an operator of a LayerNorm.
    fn step(&mut self, site: &Site, value: ValueId, op: &str, inputs: &[&str]) -> String {
        let attributes = if op == "ReduceMean" {
            vec![builder::ints("axes", &[-1])]
        } else {
            vec![]
        };
        let made = self.node(value, op, inputs, site, attributes);
        self.norms.insert(made.clone());
        made
    }

    /// Inserts a node of the new LayerNorm after the node that computes `value`, and returns the
    /// name of its output.
    fn node(
        &mut self,
        value: ValueId,
        op: &str,
        inputs: &[&str],
        site: &Site,
        attribute: Vec<AttributeProto>,
    ) -> String {
        let output = self.editor.fresh(&format!("{}.{op}", site.name));
        let like = self.view.graph.node(site.nodes[0]);
        let node = NodeProto {
            attribute,
            ..builder::node(like, op, &output, inputs, &output)
        };
        match self.view.maker(value) {
            Some(maker) => self.editor.insert_behind(maker, node),
            None => self.editor.insert_first(node),
        }
        output
    }

    fn finish(self) -> Model {
        let Remaking {
            view,
            editor,
            seeds,
            made,
            ..
        } = self;
        let graph = simplify_known(editor, seeds, view.analysis, &made);
        view.graph.model().with_graph(graph)
    }
}

/// The constant operand of a binary operator, aligned to rank `rank`. `None` if neither operand is
/// a constant of floats.
fn constant_operand(at: &At, rank: usize) -> Option<Numbers> {
    let first = at.numbers(0).ok().and_then(|numbers| numbers.align(rank));
    first.or_else(|| at.numbers(1).ok()?.align(rank))
}

/// The elements of an input, arranged along one axis.
fn on_axis(at: &At, slot: usize, axis: usize, rank: usize) -> Option<Numbers> {
    let numbers = at.numbers(slot).ok()?;
    let mut shape = vec![1; rank];
    *shape.get_mut(axis)? = numbers.len();
    numbers.reshape(&shape)
}
