//! Inputs from NumPy's files.

use std::fs::File;
use std::path::Path;

use ndarray::ArrayD;
use ndarray_npy::{NpzReader, ReadNpyExt, ReadableElement};
use tract_onnx::prelude::{Datum, DatumType, Tensor};

use crate::onnx::Model;
use crate::onnx::proto::Dim;
use crate::run::{Dims, Input};

/// Reads the inputs of a model from `file`, and the sizes that they give to its symbolic dimensions.
///
/// A `.npy` file holds the only input; a `.npz` file holds each under its name. Elements must be of the
/// type that the model declares. The error is one line.
pub fn read_inputs(file: &Path, model: &Model, dims: &Dims) -> Result<(Vec<Tensor>, Dims), String> {
    let declared = Input::of(model, dims).map_err(|failure| failure.reason)?;
    let fail = |reason: String| format!("{}: {reason}", file.display());
    let mut source = Source::open(file, &declared).map_err(fail)?;
    let tensors: Vec<Tensor> = declared
        .iter()
        .map(|input| {
            source.read(input).map_err(|reason| fail(format!("the input `{}`: {reason}", input.name)))
        })
        .collect::<Result<_, _>>()?;
    let mut dims = dims.clone();
    for (input, tensor) in declared.iter().zip(&tensors) {
        let symbols = symbols(model, &input.name);
        if symbols.len() != tensor.rank() {
            let (rank, given) = (symbols.len(), tensor.rank());
            return Err(fail(format!(
                "the input `{}` has {rank} dimensions, and {given} were given",
                input.name
            )));
        }
        symbols
            .iter()
            .zip(tensor.shape())
            .filter_map(|(symbol, &size)| Some((symbol.as_ref()?, size)))
            .for_each(|(symbol, size)| dims.set(symbol, size));
    }
    Ok((tensors, dims))
}

/// The symbols of the dimensions of an input; `None` for one that is a number.
fn symbols(model: &Model, name: &str) -> Vec<Option<String>> {
    let input = model.graph().input.iter().find(|input| input.name() == name);
    let shape = input.and_then(|input| input.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref());
    let symbol = |dim: &Option<Dim>| match dim {
        Some(Dim::DimParam(symbol)) => Some(symbol.clone()),
        _ => None,
    };
    shape.into_iter().flat_map(|shape| &shape.dim).map(|dim| symbol(&dim.value)).collect()
}

enum Source {
    One(File),
    Named(NpzReader<File>),
}

impl Source {
    fn open(path: &Path, inputs: &[Input]) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| error.to_string())?;
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("npz") => NpzReader::new(file).map(Self::Named).map_err(|error| error.to_string()),
            Some("npy") if inputs.len() == 1 => Ok(Self::One(file)),
            Some("npy") => Err(format!("the model has {} inputs, which a .npz file can hold", inputs.len())),
            _ => Err("it is neither .npy nor .npz".into()),
        }
    }

    fn read(&mut self, input: &Input) -> Result<Tensor, String> {
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
            other => Err(format!("elements of {other:?} cannot be read from a file")),
        }
    }

    fn array<T: Datum + ReadableElement>(&mut self, input: &Input) -> Result<Tensor, String> {
        let array: ArrayD<T> = match self {
            Self::One(file) => ArrayD::read_npy(file).map_err(|error| error.to_string())?,
            Self::Named(archive) => archive.by_name(&input.name).map_err(|error| error.to_string())?,
        };
        Ok(array.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::testing::affine;
    use ndarray::Array2;

    #[test]
    fn a_file_gives_values_and_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let (model, values) = (affine([1.0; 3], [0.0; 3]), Array2::<f32>::from_elem((5, 3), 2.0));
        let file = folder.path().join("x.npy");
        ndarray_npy::write_npy(&file, &values).unwrap();
        let (tensors, dims) = read_inputs(&file, &model, &Dims::default()).unwrap();
        assert_eq!((tensors[0].shape(), dims.get("n")), (&[5, 3][..], Some(5)));

        let archive = folder.path().join("all.npz");
        let mut writer = ndarray_npy::NpzWriter::new(File::create(&archive).unwrap());
        writer.add_array("x", &values).unwrap();
        writer.finish().unwrap();
        assert_eq!(read_inputs(&archive, &model, &Dims::default()).unwrap().0, tensors);
    }

    #[test]
    fn what_does_not_fit_is_one_line() {
        let folder = tempfile::tempdir().unwrap();
        let model = affine([1.0; 3], [0.0; 3]);
        let file = folder.path().join("x.npy");
        ndarray_npy::write_npy(&file, &Array2::<f64>::zeros((5, 3))).unwrap();
        let error = read_inputs(&file, &model, &Dims::default()).unwrap_err();
        assert!(error.contains("the input `x`"), "{error}");
        ndarray_npy::write_npy(&file, &ndarray::Array1::<f32>::zeros(3)).unwrap();
        assert!(
            read_inputs(&file, &model, &Dims::default())
                .unwrap_err()
                .contains("2 dimensions, and 1 were given")
        );
        assert!(read_inputs(Path::new("x.txt"), &model, &Dims::default()).is_err());
    }
}
