//! The claim that a model is the result of folding another one.

use crate::affine::plan::Stored;
use crate::error::Result;
use crate::fuse::{FuseOptions, plan, plan_without_ranges};
use crate::hash::HashSet;
use crate::onnx::Model;
use crate::onnx::proto::TensorProto;
use crate::provenance::Provenance;

/// A claim about folding: the new tensors of the second model, with their recipes.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    /// The new tensors.
    pub tensors: Vec<Stored>,
    /// The names of the sites.
    pub sites: Vec<String>,
}

impl Claim {
    /// The claim with the tensors that folding the original again, with the recorded options, would
    /// compute. `None` if the second model was folded again after it was folded from the original.
    ///
    /// # Errors
    /// The errors of [`plan`], or if the bytes of the original can no longer be read.
    pub(crate) fn recorded(original: &Model, fused: &Model) -> Result<Option<Self>> {
        let history = Provenance::from_model(fused);
        if let [earlier @ .., last] = &history[..]
            && !earlier.is_empty()
            && is_folded_again(original, earlier, last)?
        {
            return Ok(None);
        }
        let options = history
            .into_iter()
            .next_back()
            .map(|time| time.options)
            .unwrap_or_default();
        let options = FuseOptions::from(options);
        // The proof computes the new tensors anyway. Only if folding refused a tensor because of its
        // elements, the folded model lacks a planned tensor.
        let mut found = plan_without_ranges(original, &options)?;
        if !has_all(fused, &found.tensors) {
            found = plan(original, &options)?;
        }
        let sites = found.sites.into_iter().map(|site| site.name).collect();
        Ok(Some(Self {
            tensors: found.tensors,
            sites,
        }))
    }
}

/// Whether a model stores a tensor under the name of each new tensor.
fn has_all(model: &Model, tensors: &[Stored]) -> bool {
    let initializers = model.graph().initializer.iter();
    let names: HashSet<&str> = initializers.map(TensorProto::name).collect();
    tensors.iter().all(|tensor| names.contains(&*tensor.name))
}

/// Whether an earlier fold of a history read the original, and the last one did not. Takes seconds
/// for a model of gigabytes.
fn is_folded_again(original: &Model, earlier: &[Provenance], last: &Provenance) -> Result<bool> {
    let Some(digest) = original.sha256()? else {
        return Ok(false);
    };
    let reads = |time: &Provenance| time.original.as_deref() == Some(digest);
    Ok(!reads(last) && earlier.iter().any(reads))
}

#[cfg(test)]
mod tests {
    use ndarray::ArrayD;

    use super::*;
    use crate::onnx::tensor::{DataType, make};
    use crate::prove::{Proof, prove};

    /// Two layers behind normalizers. The weight of the second layer has these elements.
    fn with_second_weight(element: f64) -> Model {
        let mut model = Model::from_text(
            r#"<ir_version: 8, opset_import: ["" : 17]>
            layers (float[2, 128] x) => (float[2, 128] y) {
                a = Mul(x, g)
                b = MatMul(a, v)
                c = Relu(b)
                d = Mul(c, h)
                e = Relu(d)
                f = Mul(e, h)
                y = MatMul(f, w)
            }"#,
        )
        .unwrap();
        let tensors = [
            ("g", vec![128], 2.0),
            ("v", vec![128, 256], 0.5),
            ("h", vec![256], -1e30),
            ("w", vec![256, 128], element),
        ];
        model.proto.graph.get_or_insert_default().initializer = tensors
            .map(|(name, shape, element)| {
                let elements = ArrayD::from_elem(shape, element);
                make(name, DataType::Float, &elements.view()).unwrap()
            })
            .to_vec();
        model
    }

    fn names(tensors: &[Stored]) -> Vec<&str> {
        tensors.iter().map(|tensor| &*tensor.name).collect()
    }

    #[test]
    fn claim_has_the_tensors_of_the_fold_even_if_one_was_refused() {
        for (element, tensors) in [(0.25, 2), (1e30, 1)] {
            let original = with_second_weight(element);
            let fused = crate::fuse(&original, &FuseOptions::default()).unwrap();
            assert_eq!(fused.plan.tensors.len(), tensors);
            let claim = Claim::recorded(&original, &fused.model).unwrap().unwrap();
            assert_eq!(names(&claim.tensors), names(&fused.plan.tensors));
            let proof = prove(&original, &fused.model, &claim.tensors, &Default::default());
            assert!(matches!(proof, Proof::Proved { .. }), "{proof:?}");
        }
    }
}
