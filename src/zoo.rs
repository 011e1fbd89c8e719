//! The networks of papers on normalizers at their published sizes, with random weights.
//!
//! A topology is a model from PyTorch's exporter without the data of its weights. The `doc_string`
//! of each weight says how to draw random data for it. Each topology is a file
//! `models/zoo/NETWORK.NORM.onnx.gz`.

use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use flate2::read::GzDecoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal, Uniform};

use crate::error::{Error, Result};
use crate::onnx::proto::TensorProto;
use crate::onnx::{Model, tensor};

include!(concat!(env!("OUT_DIR"), "/zoo.rs"));

/// A network with one kind of normalizer.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    name: &'static str,
    packed: &'static [u8],
}

/// The entry with this name, such as `swin-t.un`; `None` if the zoo has no such network.
pub(crate) fn find(name: &str) -> Option<Entry> {
    Entry::all().find(|entry| entry.name == name)
}

impl Entry {
    /// All networks of the zoo, by name.
    ///
    /// ```
    /// let mut entries = unfold::zoo::Entry::all();
    /// let entry = entries.find(|entry| entry.name() == "vit-s.un").expect("it is in the zoo");
    /// assert_eq!((entry.network(), entry.norm()), ("vit-s", "un"));
    /// let model = entry.model(0)?;
    /// let plan = unfold::plan(&model, &Default::default())?;
    /// assert_eq!(plan.sites.iter().filter(|site| site.kind.name == "UN").count(), 25);
    /// # Ok::<(), unfold::error::Error>(())
    /// ```
    pub fn all() -> impl Iterator<Item = Self> {
        TOPOLOGIES
            .iter()
            .map(|&(name, packed)| Entry { name, packed })
    }

    /// The network and the normalizer, separated by a dot.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The network, such as `swin-t`.
    pub fn network(&self) -> &'static str {
        self.name
            .rsplit_once('.')
            .map_or(self.name, |(network, _)| network)
    }

    /// The normalizer, such as `un`.
    pub fn norm(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(_, norm)| norm)
    }

    /// The model with random weights, which depend on the seed.
    ///
    /// # Errors
    /// If the file of the topology is damaged.
    pub fn model(&self, seed: u64) -> Result<Model> {
        let file = PathBuf::from(format!("{}.onnx.gz", self.name));
        let mut bytes = vec![];
        let unpacked = GzDecoder::new(self.packed).read_to_end(&mut bytes);
        unpacked.map_err(|source| Error::Io { path: file, source })?;
        let mut model = Model::from_bytes(bytes)?;
        let weights = model
            .graph_mut()
            .initializer
            .iter_mut()
            .filter(|weight| !weight.doc_string().is_empty());
        for (place, weight) in weights.enumerate() {
            // Each weight has its own random stream, so the weights are independent.
            let mut numbers = ChaCha8Rng::seed_from_u64(seed);
            numbers.set_stream(place as u64);
            draw(weight, &mut numbers)?;
        }
        Ok(model)
    }
}

/// Draws the data of a weight as its `doc_string` says.
fn draw(weight: &mut TensorProto, numbers: &mut ChaCha8Rng) -> Result<()> {
    let recipe = weight.doc_string.take().unwrap_or_default();
    let fail = || Error::Tensor {
        tensor: weight.name().to_owned(),
        reason: format!("it cannot be drawn as `{recipe}`"),
    };
    let words: Vec<&str> = recipe.split(' ').collect();
    let [kind, first, second] = words[..] else {
        return Err(fail());
    };
    let (Ok(first), Ok(second)) = (first.parse(), second.parse()) else {
        return Err(fail());
    };
    let count = tensor::count(weight)?;
    let data = match kind {
        "normal" => draws(
            Normal::new(first, second).map_err(|_| fail())?,
            count,
            numbers,
        ),
        "uniform" => draws(
            Uniform::new_inclusive(first, second).map_err(|_| fail())?,
            count,
            numbers,
        ),
        _ => return Err(fail()),
    };
    weight.raw_data = Some(data);
    Ok(())
}

fn draws(distribution: impl Distribution<f32>, count: usize, numbers: &mut ChaCha8Rng) -> Bytes {
    numbers
        .sample_iter(distribution)
        .take(count)
        .flat_map(f32::to_le_bytes)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_zoo_network_can_be_drawn_and_has_sites() {
        for entry in Entry::all() {
            let model = entry.model(0).unwrap();
            assert!(
                model
                    .graph()
                    .initializer
                    .iter()
                    .all(|tensor| tensor.raw_data.is_some()),
                "{}",
                entry.name
            );
            assert!(
                !crate::plan(&model, &Default::default())
                    .unwrap()
                    .sites
                    .is_empty(),
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn seed_determines_the_weights() {
        assert_eq!(weights(1), weights(1));
        assert_ne!(weights(1), weights(2));
    }

    fn weights(seed: u64) -> Vec<TensorProto> {
        let model = find("iwslt14.un").unwrap().model(seed).unwrap();
        model.graph().initializer.clone()
    }

    #[test]
    fn unknown_weight_recipe_is_an_error() {
        let mut numbers = ChaCha8Rng::seed_from_u64(0);
        assert!(draw(&mut weight("normal 0 1"), &mut numbers).is_ok());
        for recipe in ["", "normal", "normal 0 x", "cauchy 0 1", "uniform 2 1"] {
            assert!(draw(&mut weight(recipe), &mut numbers).is_err(), "{recipe}");
        }
    }
    fn weight(recipe: &str) -> TensorProto {
        TensorProto {
            dims: vec![3],
            data_type: Some(1),
            doc_string: Some(recipe.into()),
            ..Default::default()
        }
    }
}
