//! Measures how the time of a run is divided among tract's operators.

use std::collections::BTreeSet;
use std::time::Instant;

use tract_onnx::prelude::TValue;

use crate::onnx::operator::Category;
use crate::report::{Class, Share};
use crate::run::{Engine, Failure, Session};

/// The class of every node of tract's graph, by the index of the node.
///
/// A node belongs to a normalizer if tract built it from a node whose name is in `normalizers`, or
/// from an operator that is a normalizer.
pub(super) fn classes(engine: &Engine, normalizers: &BTreeSet<String>) -> Vec<Class> {
    let mut classes = vec![];
    for node in engine.graph().nodes() {
        classes.push(match engine.origin(&node.name) {
            Some((onnx, node)) if normalizers.contains(node) || is_normalizer(onnx) => {
                Class::Normalizer
            }
            _ => by_operator(&node.op().name()),
        });
    }
    classes
}

/// Whether an ONNX operator of this name is a normalizer in any supported domain. The domain is
/// unknown here, because tract keeps only the name.
fn is_normalizer(name: &str) -> bool {
    ["", "com.microsoft"]
        .iter()
        .any(|domain| Category::from_operator(domain, name) == Some(Category::Normalizer))
}

fn by_operator(name: &str) -> Class {
    const PRODUCTS: [&str; 8] = [
        "OptMatMul",
        "EinSum",
        "Conv",
        "DepthWiseConv",
        "Im2col",
        "Deconv",
        "MatMul",
        "OptSimpleMatMul",
    ];
    const MOVEMENTS: [&str; 14] = [
        "IntoShape",
        "MoveAxis",
        "AddAxis",
        "RmAxis",
        "Reshape",
        "Slice",
        "Concat",
        "MultiBroadcastTo",
        "Pad",
        "Gather",
        "GatherNd",
        "Cast",
        "Tile",
        "Source",
    ];
    match name {
        "RmsNorm" => Class::Normalizer,
        _ if PRODUCTS.iter().any(|product| name.starts_with(product)) => Class::Product,
        _ if MOVEMENTS.contains(&name) => Class::Movement,
        _ => Class::Other,
    }
}

/// Measures the time of each class of operators in one run.
///
/// # Errors
/// The errors of [`Session::run`].
pub(super) fn profile(
    session: &mut Session,
    inputs: &[TValue],
    classes: &[Class],
) -> Result<Vec<Share>, Failure> {
    let mut shares = Class::ALL.map(|class| Share {
        class,
        seconds: 0.0,
    });
    let mut last = Instant::now();
    session.run_with(inputs, |node| {
        let now = Instant::now();
        if let Some(share) = shares.iter_mut().find(|share| share.class == classes[node]) {
            share.seconds += (now - last).as_secs_f64();
        }
        last = now;
    })?;
    Ok(shares.to_vec())
}

/// The sum of the seconds of all classes.
pub(super) fn total(shares: &[Share]) -> f64 {
    shares.iter().map(|share| share.seconds).sum()
}
