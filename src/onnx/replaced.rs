//! Finds the data files of a model that a save replaces.

use std::collections::HashSet;

use crate::onnx::Model;
use crate::onnx::atomic_write::FileDraft;
use crate::onnx::file_layout::ALIGNMENT;
use crate::onnx::walk::{self, Visited};

/// The data files of the replaced model.
#[derive(Default)]
pub(super) struct Replaced {
    /// The data files to which the replaced model refers, if their names are such as
    /// [`Model::save`] chooses.
    pub used: Vec<String>,
    /// The data file of the replaced model, if it is the only one and has the layout that
    /// [`Model::save`] writes.
    pub own: Option<String>,
}

impl Replaced {
    /// Finds the data files of the model that a draft replaces; `None` if there are none, or if the
    /// model cannot be read.
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
