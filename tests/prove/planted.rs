//! Checks that the prover finds each fault in a folded model at its site.

use std::path::Path;

use ndarray::ArrayD;
use unfold::onnx::proto::TensorProto;
use unfold::onnx::{DataType, Externals, Model, tensor};
use unfold::plan::Stored;
use unfold::prove::Proof;
use unfold::recipe::Recipe;

use super::common;
use super::{computed, digits, is_proved, proof};

/// A folded model with a fault.
pub struct Broken {
    pub original: Model,
    pub fused: Model,
    pub tensors: Vec<Stored>,
}

impl Broken {
    pub fn new(name: &str) -> Self {
        let (_, original) = digits().into_iter().find(|(own, _)| own == name).unwrap();
        let fused = unfold::fuse(&original, &common::portable()).unwrap();
        Self {
            original,
            fused: fused.model,
            tensors: fused.plan.tensors,
        }
    }

    fn tensor(&mut self, name: &str) -> &mut TensorProto {
        self.fused
            .graph_mut()
            .initializer
            .iter_mut()
            .find(|tensor| tensor.name() == name)
            .unwrap()
    }

    /// Stores other numbers, and replaces the recipe of the tensor by that of these numbers.
    fn store(&mut self, place: usize, recipe: Recipe, change: impl Fn(ArrayD<f64>) -> ArrayD<f64>) {
        let name = self.tensors[place].name.clone();
        let tensor = self.tensor(&name);
        let numbers = change(tensor::read_f64(tensor, &Externals::none()).unwrap());
        *tensor = tensor::make(&name, tensor::data_type(tensor).unwrap(), &numbers.view()).unwrap();
        self.tensors[place].recipe = recipe;
    }

    /// Lets the readers of a new tensor read a tensor of the original instead.
    fn read_instead(&mut self, new: &str, old: &str) {
        let tensor = common::initializer(&self.original, old).clone();
        let graph = self.fused.graph_mut();
        if !graph.initializer.iter().any(|tensor| tensor.name() == old) {
            graph.initializer.push(tensor);
        }
        for input in graph
            .node
            .iter_mut()
            .flat_map(|node| &mut node.input)
            .filter(|input| *input == new)
        {
            *input = old.to_owned();
        }
    }

    /// Asserts that the fault is found at one of the sites of the tensor.
    fn is_found(&self, place: usize) {
        match proof(&self.original, &self.fused, &self.tensors) {
            Proof::Disproved {
                site: Some(site), ..
            } => {
                let Stored { name, sites, .. } = &self.tensors[place];
                assert!(sites.contains(&site), "{name}: {site} is none of {sites:?}");
            }
            other => panic!("{}: {other:?}", self.tensors[place].name),
        }
    }
}

#[test]
fn one_flipped_bit_is_found_at_its_tensor() {
    let count = Broken::new("un-dynamo").tensors.len();
    for place in 0..count {
        let mut broken = Broken::new("un-dynamo");
        let name = broken.tensors[place].name.clone();
        let tensor = broken.tensor(&name);
        let mut bytes = tensor::raw(tensor, &Externals::none()).unwrap().to_vec();
        let count = bytes.len() / 4;
        bytes[4 * (place % count)] ^= 1;
        tensor.raw_data = Some(bytes.into());
        match proof(&broken.original, &broken.fused, &broken.tensors) {
            Proof::Disproved { at, site, reason } => {
                assert_eq!(
                    (at, site),
                    (name, broken.tensors[place].sites.first().copied())
                );
                assert!(reason.starts_with("1 of its "), "{reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// Moves each channel of a weight or a bias to the next place.
#[test]
fn rotated_channels_are_found_at_their_site() {
    for place in 0..Broken::new("un-dynamo").tensors.len() {
        let mut broken = Broken::new("un-dynamo");
        let recipe = broken.tensors[place].recipe.clone();
        let count = recipe.shape()[0];
        let places: Vec<usize> = (0..count).map(|at| (at + 1) % count).collect();
        let turned = recipe.pick(0, places.iter().copied().map(Some)).unwrap();
        broken.store(place, turned, |numbers| {
            numbers.select(ndarray::Axis(0), &places)
        });
        broken.is_found(place);
    }
}

#[test]
fn transposed_weight_is_found_at_its_site() {
    let whole = Broken::new("un-dynamo");
    let places: Vec<usize> = (0..whole.tensors.len())
        .filter(|&at| matches!(whole.tensors[at].recipe.shape(), [a, b] if a == b))
        .collect();
    for place in places {
        let mut broken = Broken::new("un-dynamo");
        let recipe = broken.tensors[place].recipe.turned().unwrap();
        broken.store(place, recipe, |numbers| numbers.reversed_axes());
        broken.is_found(place);
    }
}

/// The readers of a new tensor read the one that it replaced: a weight without its scale, or a bias
/// without the shift.
#[test]
fn unfolded_weight_or_bias_is_found_at_its_site() {
    let mut found = 0;
    for name in ["un-dynamo", "bn-legacy", "dyt-dynamo", "ln-dynamo"] {
        for place in 0..Broken::new(name).tensors.len() {
            let mut broken = Broken::new(name);
            let Stored { name, recipe, .. } = broken.tensors[place].clone();
            let constants = recipe.constants().into_iter().map(|name| name.to_string());
            let before =
                constants.filter(|constant| name.starts_with(&format!("{constant}_folded")));
            let Some(before) = before.max_by_key(String::len) else {
                continue;
            };
            let mut stored = broken.original.graph().initializer.iter();
            if stored.any(|tensor| tensor.name() == before) {
                broken.read_instead(&name, &before);
                broken.is_found(place);
                found += 1;
            }
        }
    }
    assert!(found > 30, "{found}");
}

#[test]
fn tensor_without_recipe_is_found() {
    let mut broken = Broken::new("un-dynamo");
    let forgotten = broken.tensors.remove(3);
    match proof(&broken.original, &broken.fused, &broken.tensors) {
        Proof::Disproved { at, reason, .. } => {
            assert_eq!(at, forgotten.name);
            assert!(
                reason.contains("neither new nor one of the original's"),
                "{reason}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_data_file_is_undecided() {
    let folder = tempfile::tempdir().unwrap();
    let mut original = Model::open("models/digits/un-dynamo.onnx").unwrap();
    original.external = true;
    let [before, after] = ["before.onnx", "after.onnx"].map(|name| folder.path().join(name));
    original.save(&before).unwrap();
    let fused = unfold::fuse(&Model::open(&before).unwrap(), &Default::default()).unwrap();
    fused.model.save(&after).unwrap();
    let found = proof_of_files(&before, &after, &fused.plan.tensors);
    assert!(is_proved(&found));
    for file in [before.clone(), after.clone()] {
        let (data, aside) = (
            file.with_extension("onnx.data"),
            folder.path().join("aside"),
        );
        std::fs::rename(&data, &aside).unwrap();
        let found = proof_of_files(&before, &after, &fused.plan.tensors);
        assert!(matches!(found, Proof::Undecided { .. }), "{found:?}");
        std::fs::rename(aside, data).unwrap();
    }
}

fn proof_of_files(before: &Path, after: &Path, tensors: &[Stored]) -> Proof {
    let [before, after] = [before, after].map(|path| Model::open(path).unwrap());
    proof(&before, &after, tensors)
}

#[test]
fn rounding_or_flushing_recipe_is_disproved() {
    for what in ["rounds to a type", "drops numbers"] {
        let mut broken = Broken::new("un-dynamo");
        let told = &mut broken.tensors[0];
        told.recipe = match what {
            "rounds to a type" => told.recipe.rounded(DataType::BFloat16),
            _ => told.recipe.flushed(1e10),
        };
        let (name, data_type, recipe) = (told.name.clone(), told.data_type, told.recipe.clone());
        let numbers = computed(&recipe, &broken.original);
        let made = tensor::make(&name, data_type, &numbers.view()).unwrap();
        let stored = broken.fused.graph_mut().initializer.iter_mut();
        *stored
            .into_iter()
            .find(|tensor| tensor.name() == name)
            .unwrap() = made;
        match proof(&broken.original, &broken.fused, &broken.tensors) {
            Proof::Disproved { at, reason, .. } => {
                assert!(at == name && reason.contains(what), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
}
