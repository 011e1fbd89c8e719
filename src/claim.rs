//! The claim that a model is the result of folding another one.

use crate::affine::plan::Stored;
use crate::error::Result;
use crate::fuse::{FuseOptions, plan};
use crate::onnx::Model;
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
        let plan = plan(original, &FuseOptions::from(options))?;
        let sites = plan.sites.into_iter().map(|site| site.name).collect();
        Ok(Some(Self {
            tensors: plan.tensors,
            sites,
        }))
    }
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
