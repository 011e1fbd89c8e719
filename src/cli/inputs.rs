//! Inputs of models: their sizes, and their values in NumPy files.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadNpyExt, ReadableElement};
use tract_onnx::prelude::{Datum, DatumType, Tensor};
use unfold::onnx::Model;
use unfold::run::{Dims, Input};

use crate::cli::usage_errors::misused;

/// Merges the sizes of dimensions that `option` gives. Each name must be a dimension of an input of
/// the model.
pub(crate) fn sizes(option: &str, given: &[Dims], model: &Model) -> Result<Dims> {
    let mut dims = Dims::default();
    dims.extend(given.iter().cloned());
    // If tract does not support the inputs at any size, no size is checked here, and verification
    // reports the failure.
    if Input::from_model(model, &Dims::default()).is_ok() {
        Input::from_model(model, &dims)
            .map_err(|failure| misused(format!("{option}: {}", failure.reason)))?;
    }
    Ok(dims)
}

/// Checks that each dimension to which an option gives a size belongs to an input of one of these
/// models.
pub(crate) fn known_to_some(option: &str, given: &[Dims], models: &[&Model]) -> Result<()> {
    let inputs = models.iter().flat_map(|model| &model.graph().input);
    let known: BTreeSet<String> = inputs
        .flat_map(Input::symbols)
        .flatten()
        .map(Cow::into_owned)
        .collect();
    let Some((name, _)) = given
        .iter()
        .flat_map(Dims::iter)
        .find(|(name, _)| !known.contains(*name))
    else {
        return Ok(());
    };
    let there = match known.is_empty() {
        true => "none".to_owned(),
        false => known.into_iter().collect::<Vec<_>>().join(", "),
    };
    Err(misused(format!(
        "{option}: no input has a symbolic dimension `{name}`; those there are: {there}"
    )))
}

/// Reads the inputs of a model from `file`. Returns them with the sizes of the model's symbolic
/// dimensions that follow from their shapes.
///
/// A `.npy` file holds the input of a model with only one input. A `.npz` file holds each input
/// under its name. The elements must have the type that the model declares.
pub(crate) fn read_inputs(file: &Path, model: &Model, dims: &Dims) -> Result<(Vec<Tensor>, Dims)> {
    let declared = Input::from_model(model, dims).map_err(|failure| anyhow!(failure.reason))?;
    let (mut tensors, mut dims) = (vec![], dims.clone());
    let mut source = Source::open(file, &declared).with_context(|| file.display().to_string())?;
    for input in &declared {
        let place = format!("{}: the input `{}`", file.display(), input.name);
        let tensor = source.read(input).with_context(|| place.clone())?;
        let declared = model
            .graph()
            .input
            .iter()
            .find(|declared| declared.name() == input.name);
        let symbols = declared.map(Input::symbols).unwrap_or_default();
        let (rank, given) = (symbols.len(), tensor.rank());
        ensure!(
            rank == given,
            "{place} has {rank} dimensions, and {given} were given"
        );
        for (symbol, &size) in symbols.into_iter().zip(tensor.shape()) {
            if let Some(symbol) = symbol {
                dims.set(symbol, size);
            }
        }
        tensors.push(tensor);
    }
    Ok((tensors, dims))
}

enum Source {
    One(File),
    Named(NpzReader<File>),
}

impl Source {
    fn open(path: &Path, inputs: &[Input]) -> Result<Self> {
        let file = File::open(path)?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => Ok(Self::Named(NpzReader::new(file)?)),
            Some("npy") if inputs.len() == 1 => Ok(Self::One(file)),
            Some("npy") => bail!(
                "the model has {} inputs, and a .npy file holds one: give a .npz file",
                inputs.len()
            ),
            _ => bail!("it is neither .npy nor .npz"),
        }
    }

    fn read(&mut self, input: &Input) -> Result<Tensor> {
        match input.element {
            DatumType::F32 => self.array::<f32>(input),
            DatumType::F64 => self.array::<f64>(input),
            DatumType::I8 => self.array::<i8>(input),
            DatumType::I16 => self.array::<i16>(input),
            DatumType::I32 => self.array::<i32>(input),
            DatumType::I64 => self.array::<i64>(input),
            DatumType::U8 => self.array::<u8>(input),
            DatumType::U16 => self.array::<u16>(input),
            DatumType::U32 => self.array::<u32>(input),
            DatumType::U64 => self.array::<u64>(input),
            DatumType::Bool => self.array::<bool>(input),
            other => bail!("elements of {other:?} cannot be read from a file"),
        }
    }

    fn array<T: Datum + ReadableElement>(&mut self, input: &Input) -> Result<Tensor> {
        let array: ArrayD<T> = match self {
            Self::One(file) => ArrayD::read_npy(file)?,
            Self::Named(archive) => archive.by_name(&input.name)?,
        };
        Ok(array.into())
    }
}
