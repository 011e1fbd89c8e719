//! Which files a model is made of, by their digests.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::walk::{self, Visited};
use super::{Model, tensor};
use crate::error::Result;

/// SHA-256 of the files of a model, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digests {
    /// Of the model's own file.
    pub sha256: String,
    /// Of each file that its tensors keep data in, by its name in the model.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}

/// What a model was read from.
#[derive(Debug)]
pub(super) struct Contents {
    pub bytes: Bytes,
    /// Whether it is a file that holds all of the model.
    pub whole: bool,
    /// Computed when it is asked for, for all clones of the model.
    sha256: OnceLock<String>,
}

impl Contents {
    pub fn new(bytes: Bytes, whole: bool) -> Self {
        Self { bytes, whole, sha256: OnceLock::new() }
    }
}

impl Model {
    /// The digest of the file, or of the bytes, that the model was read from; `None` for one that was made in memory.
    pub fn sha256(&self) -> Option<&str> {
        let source = self.source.as_ref()?;
        Some(source.sha256.get_or_init(|| sha256(&source.bytes)))
    }

    /// The digests of the file that the model was read from and of those that its tensors keep data in; a model
    /// that was made in memory has that of its bytes.
    ///
    /// # Errors
    /// Where a file of data cannot be read.
    pub fn digests(&self) -> Result<Digests> {
        let own = match self.sha256() {
            Some(own) => own.to_owned(),
            None => sha256(&self.to_bytes()?),
        };
        let mut data = BTreeMap::new();
        walk::parts(&mut self.proto.clone(), &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor::is_external(tensor)
                && let location = self.externals.span(tensor)?.location
                && !data.contains_key(&location)
            {
                let mut hash = Sha256::new();
                self.externals.whole(tensor, |piece| hash.update(piece))?;
                data.insert(location, hexadecimal(hash));
            }
            Ok(())
        })?;
        Ok(Digests { sha256: own, data })
    }
}

fn sha256(bytes: &[u8]) -> String {
    hexadecimal(Sha256::new_with_prefix(bytes))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
