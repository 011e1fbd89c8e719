//! Folds a model and runs it in tract, without a file in between.
//!
//! `cargo run --release --example tract -- models/digits/un-dynamo.onnx`

use std::error::Error;
use std::sync::Arc;

use tract_onnx::prelude::*;
use unfold::onnx::Model;

/// Loads a model into tract, for one image of 8 × 8.
fn load(model: &Model) -> Result<Arc<TypedRunnableModel>, Box<dyn Error>> {
    let bytes = model.to_bytes()?;
    let graph = tract_onnx::onnx()
        .with_ignore_value_info(true)
        .model_for_read(&mut bytes.as_ref())?;
    let image = f32::fact([1, 1, 8, 8]);
    Ok(graph
        .with_input_fact(0, image.into())?
        .into_optimized()?
        .into_runnable()?)
}

/// Returns the digit with the highest score.
fn digit(model: &Arc<TypedRunnableModel>, image: Vec<f32>) -> Result<usize, Box<dyn Error>> {
    let image = Tensor::from_shape(&[1, 1, 8, 8], &image)?;
    let outputs = model.run(tvec![image.into()])?;
    let scores = outputs[0].to_plain_array_view::<f32>()?;
    let best = scores
        .iter()
        .enumerate()
        .max_by(|one, other| one.1.total_cmp(other.1));
    Ok(best.ok_or("the model has no scores")?.0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("the path of a model is missing")?;
    let model = Model::open(path)?;
    let fused = unfold::fuse(&model, &Default::default())?.model;
    println!(
        "{} operators to {}",
        model.graph().node.len(),
        fused.graph().node.len()
    );
    println!(
        "a grey image looks most like a {}",
        digit(&load(&fused)?, vec![0.5; 64])?
    );
    Ok(())
}
