//! Which files a model is made of, by their digests.

use std::collections::BTreeMap;
use std::io;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::data::{Data, Found};
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
    pub data: Data,
    /// Whether it is a file that holds all of the model.
    pub whole: bool,
    /// Computed when it is asked for, for all clones of the model.
    sha256: OnceLock<Found<String>>,
}

impl Contents {
    pub fn new(data: Data, whole: bool) -> Self {
        Self { data, whole, sha256: OnceLock::new() }
    }

    fn sha256(&self) -> &Found<String> {
        self.sha256.get_or_init(|| sha256(&self.data))
    }
}

impl Model {
    /// The digest of the file, or of the bytes, that the model was read from; `None` for one that was made in memory.
    ///
    /// # Errors
    /// Where the file cannot be read any more.
    pub fn sha256(&self) -> Result<Option<&str>> {
        let Some(source) = &self.source else { return Ok(None) };
        match source.sha256() {
            Ok(digest) => Ok(Some(digest)),
            Err(reason) => Err(self.io(io::Error::other(reason.clone()))),
        }
    }

    /// Has the digest computed by another thread, for somebody who will ask for it later.
    pub(crate) fn begin_sha256(&self) {
        if let Some(source) = self.source.clone() {
            rayon::spawn(move || {
                source.sha256();
            });
        }
    }

    /// The digests of the file that the model was read from and of those that its tensors keep data in; a model
    /// that was made in memory has that of its bytes.
    ///
    /// # Errors
    /// Where a file of data cannot be read.
    pub fn digests(&self) -> Result<Digests> {
        let own = match self.sha256()? {
            Some(own) => own.to_owned(),
            None => hexadecimal(Sha256::new_with_prefix(self.to_bytes()?)),
        };
        let mut data = BTreeMap::new();
        walk::parts(&mut self.proto.clone(), &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor::is_external(tensor)
                && let location = self.externals.span(tensor)?.location
                && !data.contains_key(&location)
            {
                let digest = sha256(&self.externals.whole(tensor)?);
                data.insert(location, digest.map_err(|reason| self.externals.error(tensor, reason))?);
            }
            Ok(())
        })?;
        Ok(Digests { sha256: own, data })
    }
}

/// The digest of some bytes, read part by part.
pub(crate) fn sha256(data: &Data) -> Found<String> {
    let mut hash = Sha256::new();
    let read = data.hand_on(|bytes| {
        hash.update(bytes);
        Ok(())
    });
    read.map_err(|source| source.to_string())?;
    Ok(hexadecimal(hash))
}

fn hexadecimal(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
