//! Reports the verdict on two models: prints it, sets the exit code, and saves the witness.

use std::fs::File;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use ndarray::ArrayD;
use ndarray_npy::{NpzWriter, WritableElement};
use tract_onnx::prelude::{Datum, DatumType, Tensor};
use unfold::judge::{Judgement, NarrowingCast, RoundedTensor, Witness};

use super::out::{self, Paint, Tone};
use crate::cli::exit_code::End;

/// A verdict that counts as success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Accepted {
    /// Equal up to the rounding of stored tensors
    Rounding,
    /// Equal but for casts to narrower types
    Casts,
}

/// The lines that are printed about a proof. `None` if there is no proof.
pub(crate) fn success(judgement: &Judgement, paint: Paint) -> Option<String> {
    match judgement {
        Judgement::Same { points, bound } => {
            let proved = paint.text(Tone::Good, "proved to be the same function");
            Some(format!("{proved}: {}", certainty(*points, *bound)))
        }
        Judgement::Rounded {
            points,
            bound,
            tensors,
        } => {
            let but = format!(
                "up to the rounding of {}",
                counted(tensors.len(), "stored tensor")
            );
            let lines = tensors.iter().map(described).collect();
            Some(conditional(&but, (*points, *bound), lines, paint))
        }
        Judgement::Casts {
            points,
            bound,
            casts,
            tensors,
        } => {
            let mut but = format!("but for {}", counted(casts.len(), "cast"));
            if !tensors.is_empty() {
                but += &format!(
                    ", up to the rounding of {}",
                    counted(tensors.len(), "stored tensor")
                );
            }
            let lines = casts.iter().map(cast).chain(tensors.iter().map(described));
            Some(conditional(&but, (*points, *bound), lines.collect(), paint))
        }
        _ => None,
    }
}

/// The lines about a proof that holds under the condition `but`, with a line for each detail.
fn conditional(
    but: &str,
    (points, bound): (usize, f64),
    details: Vec<String>,
    paint: Paint,
) -> String {
    let proved = paint.text(Tone::Good, &format!("proved to be the same function {but}"));
    let first = format!("{proved}: {}", certainty(points, bound));
    [vec![first], details].concat().join("\n")
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A line about a cast, with the model that has it.
fn cast(cast: &NarrowingCast) -> String {
    let model = if cast.is_of_first { "first" } else { "second" };
    format!(
        "  `{}` is cast to {} in the {model} model alone",
        cast.name, cast.to
    )
}

/// The number of points and the bound on the probability of an error, in words.
fn certainty(points: usize, bound: f64) -> String {
    format!("{}, wrong with p < {bound:.0e}", counted(points, "point"))
}

/// A line about a rounded tensor, with its formula.
fn described(tensor: &RoundedTensor) -> String {
    let RoundedTensor {
        name,
        formula,
        units,
        allowed,
        is_of_first,
    } = tensor;
    let model = if *is_of_first {
        " of the first model"
    } else {
        ""
    };
    format!(
        "  {name}{model} = {formula}, within {units:.1} units in the last place (rounding explains {allowed:.1})"
    )
}

/// The second model of a verdict, the verdicts that count as success, and the file for a witness.
pub(super) struct JudgedModel<'j> {
    pub path: &'j Path,
    pub accept: &'j [Accepted],
    pub witness: Option<&'j Path>,
    /// A sentence that says how to find out more about a difference.
    pub advice: &'static str,
}

/// The exit code. Reports a difference or an undecided verdict as an error, and saves the witness.
///
/// # Errors
/// If the second model is invalid, or the witness cannot be written.
pub(super) fn end(judgement: &Judgement, model: &JudgedModel) -> Result<End> {
    let other = model.path.display();
    let accepts = |verdict| model.accept.contains(&verdict);
    match judgement {
        Judgement::Same { .. } => Ok(End::Done),
        Judgement::Rounded { .. } if accepts(Accepted::Rounding) => Ok(End::Done),
        Judgement::Rounded { .. } => Ok(End::Rounded),
        Judgement::Casts { tensors, .. } => {
            let is_rounded = !tensors.is_empty() && !accepts(Accepted::Rounding);
            Ok(match (accepts(Accepted::Casts), is_rounded) {
                (false, _) => End::Casts,
                (true, true) => End::Rounded,
                (true, false) => End::Done,
            })
        }
        Judgement::Invalid { .. } => bail!("{other} {}", failure(judgement)),
        Judgement::Undecided { .. } => {
            out::complain("error", &format!("{other}: {}", failure(judgement)));
            Ok(End::Unverified)
        }
        Judgement::Different(witness) => {
            let shown = match model.witness {
                Some(file) => {
                    save(witness, file).with_context(|| file.display().to_string())?;
                    format!("the inputs in {} show it", file.display())
                }
                None => model.advice.to_owned(),
            };
            out::complain("error", &format!("{other} {}; {shown}", failure(judgement)));
            Ok(End::Differs)
        }
    }
}

/// The second half of a sentence about a verdict without a proof, with the second model as its
/// subject. Empty if there is a proof.
pub(crate) fn failure(judgement: &Judgement) -> String {
    match judgement {
        Judgement::Undecided { reason } => format!("it could not be decided: {reason}"),
        Judgement::Invalid { at, reason } => format!("is no valid model, at `{at}`: {reason}"),
        Judgement::Different(witness) => format!("computes something else: {}", shown(witness)),
        _ => String::new(),
    }
}

/// The difference that a witness shows, and the first value without a known counterpart.
fn shown(witness: &Witness) -> String {
    let difference = difference(witness);
    match &witness.first_value {
        Some(first) => {
            format!("{difference}; `{first}` is the first value without a known counterpart")
        }
        None => difference,
    }
}

fn difference(witness: &Witness) -> String {
    let Witness {
        output,
        relative,
        rounding,
        ..
    } = witness;
    match &witness.shapes {
        Some([first, second]) => format!(
            "in a run, its output `{output}` has the shape {second:?}, and that of the first model the shape {first:?}"
        ),
        None => format!(
            "a run differs by {relative:.1e} in `{output}`, where one rounding of each weight makes {rounding:.1e}"
        ),
    }
}

/// Writes the inputs of a witness to a .npz file, under their names.
pub(crate) fn save(witness: &Witness, file: &Path) -> Result<()> {
    save_inputs(&witness.inputs, file)
}

/// Writes inputs to a .npz file, under their names.
pub(super) fn save_inputs(inputs: &[(String, Tensor)], file: &Path) -> Result<()> {
    let mut archive = NpzWriter::new(File::create(file)?);
    for (name, tensor) in inputs {
        match tensor.datum_type() {
            DatumType::F32 => add::<f32>(&mut archive, name, tensor),
            DatumType::F64 => add::<f64>(&mut archive, name, tensor),
            DatumType::I8 => add::<i8>(&mut archive, name, tensor),
            DatumType::I16 => add::<i16>(&mut archive, name, tensor),
            DatumType::I32 => add::<i32>(&mut archive, name, tensor),
            DatumType::I64 => add::<i64>(&mut archive, name, tensor),
            DatumType::U8 => add::<u8>(&mut archive, name, tensor),
            DatumType::U16 => add::<u16>(&mut archive, name, tensor),
            DatumType::U32 => add::<u32>(&mut archive, name, tensor),
            DatumType::U64 => add::<u64>(&mut archive, name, tensor),
            DatumType::Bool => add::<bool>(&mut archive, name, tensor),
            other => Err(anyhow!("elements of {other:?} cannot be written to a file")),
        }?;
    }
    archive.finish()?;
    Ok(())
}

fn add<T: Datum + WritableElement>(
    archive: &mut NpzWriter<File>,
    name: &str,
    tensor: &Tensor,
) -> Result<()> {
    let plain = tensor.try_as_plain_ram()?;
    let elements = plain.as_slice::<T>()?.to_vec();
    let array = ArrayD::from_shape_vec(tensor.shape(), elements)?;
    archive.add_array(name, &array)?;
    Ok(())
}
