//! Finds the data files of a model that a save replaces.

use std::collections::HashSet;

use crate::onnx::Model;
use crate::onnx::atomic_write::FileDraft;
use crate::onnx::file_layout::ALIGNMENT;
use crate::onnx::walk::{self, Visited};

/// The data files of the replaced model.
#[derive(Default)]
pub(super) struct Replaced {
    /// The data files that follow the naming of [`Model::save`] and to which the model refers.
    pub used: Vec<String>,
    /// The data file that [`Model::save`] wrote for the model.
    pub own: Option<String>,
}

impl Replaced {
    /// Finds the data files of the model that a draft replaces; `None` if the model has none.
    pub(super) fn find(draft: &FileDraft) -> Option<Self> {
        let names = draft.data_names();
        // If the folder has no data file with a matching name, the model need not be read.
        names.first()?;
        let Model {
            mut proto,
            externals,
            ..
        } = Model::open(draft.path()).ok()?;
        let mut locations = HashSet::new();
        let (mut laid_out, mut end, mut seen) = (true, 0, HashSet::new());
        let walked = walk::parts(&mut proto, &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor.is_external()
            {
                let span = externals.span(tensor)?;
                laid_out &= tensor.external_data == span.entries();
                locations.insert(span.location.clone());
                let (offset, length) = (span.offset, span.length as u64);
                if seen.insert(span) {
                    laid_out &= offset == u64::next_multiple_of(end, ALIGNMENT);
                    end = offset + length;
                }
            }
            Ok(())
        });
        walked.ok()?;
        let used: Vec<String> = names
            .into_iter()
            .filter(|name| locations.contains(name))
            .collect();
        let own = used
            .first()
            .filter(|_| laid_out && locations.len() == 1)
            .filter(|name| {
                let held = draft.folder().join(name).metadata();
                held.is_ok_and(|metadata| metadata.len() == end)
            })
            .cloned();
        Some(Self { used, own })
    }
}
