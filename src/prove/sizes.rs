//! The sizes of open extents at which a proof is made, and the inputs at these sizes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Proof, undecided};
use crate::onnx::Model;
use crate::onnx::node::bodies;
use crate::onnx::proto::{Dim, GraphProto, ModelProto, TensorProto, ValueInfoProto};
use crate::onnx::tensor::{self, DataType};
use crate::run::{Dims, Input, free, is_formula};

/// The sizes of a batch that are tried. The first size is the default.
const BATCHES: [usize; 6] = [2, 3, 1, 4, 8, 16];

/// The sizes of other symbols that are tried next. Several strided layers require a multiple of all
/// their strides, and the layers before a speech encoder require hundreds of samples.
const OTHERS: [usize; 5] = [16, 64, 512, 2048, 8192];

/// The maximum number of extents of constants that are tried as sizes after `OTHERS`.
const FREQUENT: usize = 4;

/// The maximum number of elements of all inputs together at sizes larger than the usual ones. It is
/// limited because trying a size takes as long as a proof.
const LARGER: u64 = 1 << 20;

/// The candidates for sizes of lengths, in the order in which they are tried. Candidates that equal
/// an extent in a model are skipped.
const LENGTHS: [usize; 12] = [5, 7, 6, 9, 10, 11, 13, 14, 15, 17, 18, 19];

/// The candidates for sizes of batches.
const UNUSED_BATCHES: [usize; 10] = [2, 3, 5, 4, 7, 6, 9, 10, 11, 13];

/// The candidates for sizes of the sides of images. Each size is divisible by the usual products of
/// strides.
const SIDES: [usize; 10] = [160, 96, 192, 128, 288, 320, 352, 64, 416, 448];

/// Operators with an input that holds extents or lengths of parts, and the index of that input.
const EXTENTS: &[(&str, usize)] = &[
    ("Reshape", 1),
    ("Expand", 1),
    ("ConstantOfShape", 0),
    ("Tile", 1),
    ("Split", 1),
    ("Resize", 3),
];

/// The kind of extent of a symbol.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExtentKind {
    Batch,
    Side,
    Length,
}

/// The open extents of a model, and the sizes at which a proof may be made.
pub(super) struct SizeSearch<'m> {
    original: &'m Model,
    fused: &'m Model,
    given: Dims,
    /// The symbols without a given size, in the order of the inputs.
    symbols: Vec<(String, ExtentKind)>,
    /// All extents that occur in either model.
    used: HashSet<usize>,
}

impl<'m> SizeSearch<'m> {
    /// The open extents of `original`, except those with a given size.
    pub(super) fn new(original: &'m Model, fused: &'m Model, given: &Dims) -> Self {
        let light = numbers(original.graph());
        let mut symbols: Vec<(String, ExtentKind)> = vec![];
        for names in free(&light).map(Input::symbols) {
            let rank = names.len();
            for (axis, name) in names.into_iter().enumerate() {
                // No size is chosen for a formula, because it follows from the sizes of the symbols
                // in the formula.
                let Some(name) = name.filter(|name| given.get(name).is_none() && !is_formula(name))
                else {
                    continue;
                };
                let is_batch = Dims::default_for(Some(&name), axis, rank) == BATCHES[0];
                let meaning = match is_batch {
                    true => ExtentKind::Batch,
                    false if rank == 4 && axis >= 2 => ExtentKind::Side,
                    false => ExtentKind::Length,
                };
                if symbols.iter().all(|(other, _)| *other != name) {
                    symbols.push((name.into_owned(), meaning));
                }
            }
        }
        let used = used_extents(original)
            .union(&used_extents(fused))
            .copied()
            .collect();
        Self {
            original,
            fused,
            given: given.clone(),
            symbols,
            used,
        }
    }

    /// The sizes to try until the original fits. The first sizes differ from all other extents, so
    /// that no extents are equal by accident. Sizes that networks usually require follow.
    pub(super) fn first(&self) -> Vec<Dims> {
        let apart = self.unused(&Dims::default(), true, false);
        let by_meaning = self.unused(&Dims::default(), false, false);
        let mut sizes: Vec<Dims> = apart
            .into_iter()
            .chain(by_meaning)
            .filter(|dims| self.fits(dims))
            .collect();
        sizes.dedup();
        sizes.extend(self.usual());
        sizes
    }

    /// The sizes to try after `first`, at which the original fits: new sizes for all symbols, with
    /// a batch of 1 if possible, or only a new size of the batch.
    pub(super) fn second(&self, first: &Dims) -> Vec<Dims> {
        if self.symbols.is_empty() {
            return vec![];
        }
        let apart = self.unused(first, true, true);
        let by_meaning = self.unused(first, false, true);
        let batches = self.named(ExtentKind::Batch);
        let mut sizes: Vec<Dims> = apart.into_iter().chain(by_meaning).collect();
        if !batches.is_empty() {
            let mut unused = UNUSED_BATCHES.iter().copied();
            let other = unused
                .find(|&size| batches.iter().all(|name| first.get(name) != Some(size)))
                .unwrap_or(BATCHES[0]);
            sizes.push(with(first, &batches, 1));
            sizes.push(with(first, &batches, other));
        }
        sizes.retain(|dims| self.fits(dims));
        sizes.dedup();
        sizes
    }

    /// One assignment for each symbol. In it, this symbol is so large that no part of a Split with
    /// computed lengths is empty. At smaller sizes, some parts of an axis that slicing splits are
    /// empty.
    pub(super) fn with_all_parts(&self, dims: &Dims) -> Vec<Dims> {
        let Some(size) = size_of_all_parts(self.fused) else {
            return vec![];
        };
        let symbols = self.symbols.iter();
        let mut sizes: Vec<Dims> = symbols.map(|(name, _)| with(dims, &[name], size)).collect();
        sizes.retain(|dims| self.are_small(dims));
        sizes
    }

    /// Copies `dims`, but with size 1 for each symbol that is a length.
    pub(super) fn with_lengths_of_one(&self, dims: &Dims) -> Dims {
        with(dims, &self.named(ExtentKind::Length), 1)
    }

    /// Sizes that are neither an extent in either model, nor a size in `before`, nor a given size.
    /// If `is_apart`, each symbol gets its own size. Otherwise, symbols of the same kind get the
    /// same size. If `may_be_one`, the first symbol of a batch gets the size 1. `None` if there are
    /// no symbols, or not enough candidates.
    fn unused(&self, before: &Dims, is_apart: bool, may_be_one: bool) -> Option<Dims> {
        let mut taken: HashSet<usize> = before
            .iter()
            .map(|(_, size)| size)
            .chain(self.given_sizes())
            .collect();
        let (mut dims, mut by_meaning) = (self.given.clone(), vec![]);
        for (name, meaning) in &self.symbols {
            let chosen = by_meaning
                .iter()
                .find(|(other, _)| other == meaning)
                .map(|&(_, size)| size);
            let is_first_batch = *meaning == ExtentKind::Batch && chosen.is_none();
            let size = match chosen.filter(|_| !is_apart) {
                Some(size) => size,
                None if may_be_one && is_first_batch => 1,
                None => {
                    let mut sizes = candidates(*meaning).iter().copied();
                    sizes.find(|size| !taken.contains(size) && !self.used.contains(size))?
                }
            };
            taken.insert(size);
            by_meaning.push((*meaning, size));
            dims.set(name.clone(), size);
        }
        (!self.symbols.is_empty()).then_some(dims)
    }

    fn given_sizes(&self) -> impl Iterator<Item = usize> {
        self.given.iter().map(|(_, size)| size)
    }

    fn named(&self, meaning: ExtentKind) -> Vec<&str> {
        self.symbols
            .iter()
            .filter(|(_, other)| *other == meaning)
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// Whether the inputs have at most [`LARGER`] elements at these sizes, or at most twice as many
    /// as at the default sizes.
    fn fits(&self, dims: &Dims) -> bool {
        let usual = self.elements_at(&self.given).unwrap_or_default();
        let count = self.elements_at(dims);
        count.is_some_and(|count| count <= usual.saturating_mul(2) || count <= LARGER)
    }

    /// The number of elements of all inputs at these sizes. `None` if the sizes are impossible.
    fn elements_at(&self, dims: &Dims) -> Option<u64> {
        let inputs = inputs(self.original, dims).ok()?;
        Some(elements(&inputs))
    }

    /// Whether the inputs have at most [`LARGER`] elements at these sizes.
    fn are_small(&self, dims: &Dims) -> bool {
        self.elements_at(dims).is_some_and(|count| count <= LARGER)
    }

    /// The sizes that networks usually require: the default sizes, then other sizes of the batch,
    /// then other sizes of all other symbols.
    fn usual(&self) -> Vec<Dims> {
        let batch = self.named(ExtentKind::Batch);
        let others = [self.named(ExtentKind::Side), self.named(ExtentKind::Length)].concat();
        let mut sizes = vec![];
        let tried = if batch.is_empty() {
            &BATCHES[..1]
        } else {
            &BATCHES[..]
        };
        for &size in tried {
            let dims = with(&self.given, &batch, size);
            if size <= BATCHES[0] || self.are_small(&dims) {
                sizes.push(dims);
            }
        }
        if others.is_empty() {
            return sizes;
        }
        let frequent = frequent_extents(self.original);
        let mut further: Vec<Dims> = OTHERS
            .iter()
            .chain(&frequent)
            .map(|&size| with(&self.given, &others, size))
            .collect();
        // The extent of a constant may be the size of only one symbol, so each extent is also tried
        // for each single symbol.
        if others.len() > 1 {
            for size in frequent {
                further.extend(others.iter().map(|name| with(&self.given, &[name], size)));
            }
        }
        further.retain(|dims| self.are_small(dims));
        sizes.extend(further);
        sizes
    }
}

/// The size at which no part of a Split with computed lengths is empty: the number of parts times
/// the largest constant in a Max, which is the minimum length of a part. `None` without a Split of
/// computed lengths, or without such a number.
fn size_of_all_parts(model: &Model) -> Option<usize> {
    let graph = model.graph();
    let stored: HashMap<&str, &TensorProto> = graph
        .initializer
        .iter()
        .map(|tensor| (tensor.name(), tensor))
        .collect();
    let (mut parts, mut least) = (None, None);
    for node in &graph.node {
        let operands = node.input.iter().map(|name| stored.get(name.as_str()));
        match node.op() {
            ("", "Split") if operands.clone().skip(1).any(|stored| stored.is_none()) => {
                parts = parts.max(Some(node.output.len()));
            }
            ("", "Max") => {
                let numbers = operands.flatten();
                let integers =
                    numbers.filter_map(|tensor| tensor::read_i64(tensor, model.externals()).ok());
                least = least.max(integers.flatten().max());
            }
            _ => {}
        }
    }
    usize::try_from(least?).ok()?.checked_mul(parts?)
}

fn candidates(meaning: ExtentKind) -> &'static [usize] {
    match meaning {
        ExtentKind::Batch => &UNUSED_BATCHES,
        ExtentKind::Side => &SIDES,
        ExtentKind::Length => &LENGTHS,
    }
}

/// A copy of the sizes in which these symbols have the size `size`.
fn with(dims: &Dims, names: &[&str], size: usize) -> Dims {
    let mut dims = dims.clone();
    names.iter().for_each(|&name| dims.set(name, size));
    dims
}

/// All extents that occur in a model: extents of stored tensors and of inputs, and extents in
/// stored shapes.
fn used_extents(model: &Model) -> HashSet<usize> {
    let (mut used, mut open) = (HashSet::new(), vec![model.graph()]);
    while let Some(graph) = open.pop() {
        let stored: HashMap<&str, &TensorProto> = graph
            .initializer
            .iter()
            .map(|tensor| (tensor.name(), tensor))
            .collect();
        let tensors = graph.initializer.iter().flat_map(|tensor| &tensor.dims);
        used.extend(tensors.filter_map(|&extent| usize::try_from(extent).ok()));
        for input in &graph.input {
            used.extend(declared_extents(input));
        }
        for node in &graph.node {
            for &(_, slot) in EXTENTS.iter().filter(|(op, _)| *op == node.op_type()) {
                let tensor = node
                    .input
                    .get(slot)
                    .and_then(|name| stored.get(name.as_str()));
                let extents =
                    tensor.and_then(|tensor| tensor::read_i64(tensor, model.externals()).ok());
                let extents = extents
                    .into_iter()
                    .flat_map(|extents| extents.into_iter().collect::<Vec<_>>());
                used.extend(extents.filter_map(|extent| usize::try_from(extent).ok()));
            }
            open.extend(bodies(node));
        }
    }
    used
}

/// The known extents in the declaration of an input.
fn declared_extents(input: &ValueInfoProto) -> Vec<usize> {
    let tensor = input.r#type.as_ref().and_then(|of| of.tensor_type.as_ref());
    let Some(shape) = tensor.and_then(|tensor| tensor.shape.as_ref()) else {
        return vec![];
    };
    let extents = shape.dim.iter().filter_map(|dim| match dim.value {
        Some(Dim::DimValue(extent)) => usize::try_from(extent).ok(),
        _ => None,
    });
    extents.collect()
}

/// The most frequent extents of constants. They are tried as sizes, because an open extent may have
/// to equal one of them.
fn frequent_extents(model: &Model) -> Vec<usize> {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    let extents = model
        .graph()
        .initializer
        .iter()
        .flat_map(|tensor| &tensor.dims);
    for extent in extents.filter_map(|&extent| usize::try_from(extent).ok()) {
        *times.entry(extent).or_default() += 1;
    }
    let mut extents: Vec<(usize, usize)> = times
        .into_iter()
        .filter(|&(extent, _)| extent > 1)
        .collect();
    extents.sort_by_key(|&(extent, times)| (std::cmp::Reverse(times), extent));
    extents
        .into_iter()
        .take(FREQUENT)
        .map(|(extent, _)| extent)
        .collect()
}

/// The total number of elements of inputs.
pub(super) fn elements(inputs: &[Input]) -> u64 {
    let mut all = 0_u64;
    for input in inputs {
        let extents = input.shape.iter();
        let count = extents.fold(1_u64, |n, &extent| n.saturating_mul(extent as u64));
        all = all.saturating_add(count);
    }
    all
}

/// The numeric inputs of a model at these sizes.
///
/// # Errors
/// The undecided verdict, if these sizes are impossible.
pub(super) fn inputs(model: &Model, dims: &Dims) -> Result<Vec<Input>, Proof> {
    let light = Model::from_proto(ModelProto {
        graph: Some(numbers(model.graph())),
        ..Default::default()
    });
    Input::from_model(&light, dims).map_err(|failure| undecided(failure.to_string()))
}

/// A graph with only the numeric inputs and the names of the initializers.
fn numbers(graph: &GraphProto) -> GraphProto {
    let stored = graph.initializer.iter();
    let names = stored.map(|tensor| TensorProto {
        name: tensor.name.clone(),
        ..Default::default()
    });
    GraphProto {
        input: graph.input.iter().filter_map(number).collect(),
        initializer: names.collect(),
        ..Default::default()
    }
}

/// A numeric input. Its floats are declared as float32, because some engines lack bfloat16. `None`
/// if the input has no shape, or if its elements are not floats or integers of at least 8 bits.
fn number(input: &ValueInfoProto) -> Option<ValueInfoProto> {
    let mut input = input.clone();
    let tensor = input.r#type.as_mut()?.tensor_type.as_mut()?;
    tensor.shape.as_ref()?;
    let element = DataType::from_code(tensor.elem_type())?;
    let is_wide_integer = element.is_integer() && element.bits() >= Some(8);
    let element = if element.is_float() {
        DataType::Float
    } else {
        element
    };
    tensor.elem_type = Some(element.code());
    (element.is_float() || is_wide_integer).then_some(input)
}
