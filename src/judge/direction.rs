//! Proves that two models are the same function, if formulas over one model replace tensors of the
//! other.

use super::computed_twins::{self, StoredTwins};
use super::match_tensors::{self, Matched};
use super::mixed_rows::{MIXED, with_mixed_rows};
use super::stored_indices::has_foreign_indices;
use crate::affine::plan::Stored;
use crate::ir::Graph;
use crate::onnx::Model;
use crate::prove::{
    Proof, ProveOptions, RecordedValues, ValueDigests, foreign, same_function_recorded,
};

/// The number of points at which any two of the first 128 places of a mask have different values.
const POINTS_OF_MASKS: usize = 8;

/// A comparison in which formulas over `base` may replace tensors of `other`.
pub(super) struct ComparisonDirection<'d> {
    /// The model whose values the formulas read.
    pub base: &'d Model,
    /// The model whose tensors the formulas replace.
    pub other: &'d Model,
    /// Whether `other` is the first of the two judged models.
    pub is_exchanged: bool,
    pub options: &'d ProveOptions,
    /// The record of the values of both models.
    pub record: &'d RecordedValues,
}

/// The result of a successful proof.
pub(super) struct EstablishedFormulas {
    /// The number of points at which both models were evaluated.
    pub points: usize,
    /// A bound on the probability that the models differ.
    pub bound: f64,
    /// The replaced tensors, with the formulas that replace them.
    pub matched: Vec<Matched>,
}

impl ComparisonDirection<'_> {
    /// Tries to prove that the models are the same function, at most three times: with formulas for
    /// tensors of `other`; then also with initializers for the constants that `base` stores and
    /// `other` computes; at last without formulas.
    ///
    /// # Errors
    /// The first failed proof, in which formulas replace tensors that `other` stores.
    pub(super) fn proved(&self) -> Result<EstablishedFormulas, Proof> {
        let matched = self.matched();
        let has_formulas = !matched.is_empty();
        let (matched, failed) = match self.with_formulas(self.other, matched) {
            Ok(established) => return Ok(established),
            Err((_, failed @ Proof::Invalid { .. })) => return Err(failed),
            Err(failed) => failed,
        };
        if let Some(established) = self.with_stored_twins(matched) {
            return Ok(established);
        }
        // A tensor may match a formula by chance, so a proof without formulas is tried too.
        if has_formulas && let Ok(established) = self.with_formulas(self.other, vec![]) {
            return Ok(established);
        }
        Err(failed)
    }

    /// Like [`ComparisonDirection::proved`], but tries only proofs in which formulas replace
    /// tensors. `None` if none succeeds.
    pub(super) fn proved_by_formulas(&self) -> Option<EstablishedFormulas> {
        let matched = self.matched();
        if matched.is_empty() {
            return self.with_stored_twins(matched);
        }
        match self.with_formulas(self.other, matched) {
            Ok(established) => Some(established),
            Err((matched, _)) => self.with_stored_twins(matched),
        }
    }

    /// Records the values of both models, with formulas for the tensors that `other` stores.
    pub(super) fn record_values(&self) {
        let _ = self.with_formulas(self.other, self.matched());
    }

    /// The tensors that only `other` stores and that match a formula over `base`.
    fn matched(&self) -> Vec<Matched> {
        match foreign(self.base, self.other) {
            Ok(foreign) => {
                match_tensors::matched(self.base, self.other, &read(self.other, foreign))
            }
            Err(_) => vec![],
        }
    }

    /// Proves that the models are the same function, after `other` stores the constants that it
    /// computes and `base` stores. `None` if no constant of `other` equals a tensor of `base`, or
    /// if the proof fails.
    fn with_stored_twins(&self, matched: Vec<Matched>) -> Option<EstablishedFormulas> {
        let StoredTwins {
            model,
            matched: twins,
        } = computed_twins::stored(self.base, self.other)?;
        let all = matched.into_iter().chain(twins).collect();
        self.with_formulas(&model, all).ok()
    }

    /// Proves that `base` and `other` are the same function, with formulas for tensors of `other`.
    ///
    /// # Errors
    /// The formulas, and the proof that failed.
    fn with_formulas(
        &self,
        other: &Model,
        matched: Vec<Matched>,
    ) -> Result<EstablishedFormulas, (Vec<Matched>, Proof)> {
        let formulas: Vec<Stored> = matched.iter().map(|found| found.stored.clone()).collect();
        let models = [self.base, other];
        let values = self.record.emptied();
        let proof = same_function_recorded(models, &formulas, self.options, Some(&values));
        self.keep(values.take(), matches!(proof, Proof::Proved { .. }));
        let Proof::Proved { points, bound, .. } = proof else {
            return Err((matched, proof));
        };
        let compared = self
            .compare_masks(models, &formulas)
            .and_then(|()| self.compare_rows(models, &formulas));
        match compared {
            Ok(()) => Ok(EstablishedFormulas {
                points,
                bound,
                matched,
            }),
            Err(failed) => Err((matched, failed)),
        }
    }

    /// Compares the places of masks that have the same drawn value at a single point. Another place
    /// may be selected only if `other` stores indices that `base` does not store.
    ///
    /// # Errors
    /// The proof that failed.
    fn compare_masks(&self, models: [&Model; 2], formulas: &[Stored]) -> Result<(), Proof> {
        let [base, other] = models;
        if !has_foreign_indices(base, other) {
            return Ok(());
        }
        let options = ProveOptions {
            points: self.options.points.max(POINTS_OF_MASKS),
            ..self.options.clone()
        };
        proved(same_function_recorded(models, formulas, &options, None))
    }

    /// Compares the rows of tables that no drawn index selects. They may differ only if `other`
    /// stores a tensor that no formula gives.
    ///
    /// # Errors
    /// The proof that failed, or that `other` could not be read.
    fn compare_rows(&self, [base, other]: [&Model; 2], formulas: &[Stored]) -> Result<(), Proof> {
        let mut foreign = foreign(base, other)?;
        foreign.retain(|name| formulas.iter().all(|formula| formula.name != *name));
        if foreign.is_empty() {
            return Ok(());
        }
        let Some([base, other]) = with_mixed_rows([base, other]) else {
            return Ok(());
        };
        let proof = same_function_recorded([&base, &other], formulas, self.options, None);
        proved(proof).map_err(named_after_table)
    }

    /// Records the values of a proof if the proof succeeded, or if nothing is recorded yet.
    fn keep(&self, ValueDigests([base, other]): ValueDigests, is_proved: bool) {
        if is_proved || self.record.is_empty() {
            self.record.keep(ValueDigests(if self.is_exchanged {
                [other, base]
            } else {
                [base, other]
            }));
        }
    }
}

/// A failed proof as an error.
fn proved(proof: Proof) -> Result<(), Proof> {
    match proof {
        Proof::Proved { .. } => Ok(()),
        failed => Err(failed),
    }
}

/// The failed proof, with the name of a table in place of the name of its mixed rows.
fn named_after_table(failed: Proof) -> Proof {
    match failed {
        Proof::Disproved { at, site, reason } => Proof::Disproved {
            at: at.strip_suffix(MIXED).unwrap_or(&at).to_owned(),
            site,
            reason,
        },
        other => other,
    }
}

/// Keeps only the names of values that are outputs of the model, or that a node of the model reads.
fn read(model: &Model, mut names: Vec<String>) -> Vec<String> {
    if let Ok(graph) = Graph::new(model) {
        names.retain(|name| graph.reads(name));
    }
    names
}
