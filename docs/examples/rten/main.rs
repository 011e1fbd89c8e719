//! Folds a model and runs it in rten, without a file in between.
//!
//! `cargo run --release --manifest-path docs/examples/rten/Cargo.toml -- models/digits/un-dynamo.onnx`

use std::error::Error;

use rten::Value;
use unfold::onnx::Model;

/// Runs a model on an image of 8 × 8. Returns the scores.
fn scores(model: &Model, image: Vec<f32>) -> Result<Vec<f32>, Box<dyn Error>> {
    let model = rten::Model::load(model.to_bytes()?.into())?;
    let image = Value::from_shape(&[1, 1, 8, 8], image)?;
    let (_, scores) = model.run_one(image.into(), None)?.into_shape_vec::<f32, 2>()?;
    Ok(scores)
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("the path of a model is missing")?;
    let model = Model::open(path)?;
    let fused = unfold::fuse(&model, &Default::default())?.model;
    println!("{} operators to {}", model.graph().node.len(), fused.graph().node.len());
    println!("{:?}", scores(&fused, vec![0.5; 64])?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rten_makes_of_the_result_what_it_made_of_the_model() {
        for name in ["un-dynamo", "bn-legacy", "dyt-dynamo", "ln-legacy"] {
            let model = Model::open(format!("../../../models/digits/{name}.onnx")).unwrap();
            let fused = unfold::fuse(&model, &Default::default()).unwrap().model;
            let image: Vec<f32> = (0..64).map(|at| (at * 7 % 17) as f32 / 16.0).collect();
            let [before, after] = [&model, &fused].map(|model| scores(model, image.clone()).unwrap());
            let largest = before.iter().fold(0.0f32, |most, score| most.max(score.abs()));
            assert!(before.len() == 10 && largest > 0.1, "{name}");
            for (before, after) in before.iter().zip(&after) {
                assert!((before - after).abs() <= 1e-5 * largest, "{name}: {before} {after}");
            }
        }
    }
}
