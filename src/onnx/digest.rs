//! The digests of the files that a model consists of.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};

use prost::Message;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Model;
use super::data::{Data, Found};
use super::proto::{ModelProto, StringStringEntryProto};
use super::walk::{self, Visited};
use crate::error::Result;
use crate::platform::HAS_THREADS;

/// The number of hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// SHA-256 of the files of a model, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Digests {
    /// The digest of the model's own file.
    pub sha256: String,
    /// The digest of each file with external data of its tensors, by its location.
    #[serde(default)]
    pub data: BTreeMap<String, String>,
}

/// The bytes that a model was read from.
#[derive(Debug)]
pub(super) struct Contents {
    pub data: Data,
    /// Whether the data is a file that contains the whole model, without external data.
    pub whole: bool,
    /// The digest, which is computed on demand, once for all clones of the model.
    sha256: OnceLock<Found<String>>,
}

impl Contents {
    pub(super) fn new(data: Data, whole: bool) -> Self {
        Self {
            data,
            whole,
            sha256: OnceLock::new(),
        }
    }

    fn sha256(&self) -> &Found<String> {
        self.sha256.get_or_init(|| sha256(&self.data))
    }
}

/// A metadata entry for the digest of the bytes from which another model was read. Its value
/// consists of zeros until the digest is known.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    key: String,
    of: Arc<Contents>,
}

impl Pending {
    /// The offset of the entry's value in the encoded message, if the entry exists and still
    /// consists of zeros.
    pub(super) fn place(&self, message: &ModelProto) -> Option<u64> {
        let entries = &message.metadata_props;
        let at = entries.iter().position(|entry| self.is(entry))?;
        // The encoded fields follow each other in the order of their numbers.
        let behind = ModelProto {
            metadata_props: entries[at + 1..].to_vec(),
            training_info: message.training_info.clone(),
            functions: message.functions.clone(),
            configuration: message.configuration.clone(),
            ..ModelProto::default()
        };
        Some((message.encoded_len() - behind.encoded_len() - DIGITS) as u64)
    }

    /// Waits for the digest, or computes it.
    ///
    /// # Errors
    /// If the digested bytes can no longer be read.
    pub(super) fn digest(&self) -> io::Result<&str> {
        self.of
            .sha256()
            .as_deref()
            .map_err(|reason| io::Error::other(reason.clone()))
    }

    /// Writes the digest into the entry, if it exists and still consists of zeros.
    ///
    /// # Errors
    /// The errors of [`Pending::digest`].
    pub(crate) fn settle(&self, message: &mut ModelProto) -> io::Result<()> {
        if let Some(entry) = message
            .metadata_props
            .iter_mut()
            .find(|entry| self.is(entry))
        {
            entry.value = Some(self.digest()?.to_owned());
        }
        Ok(())
    }

    fn is(&self, entry: &StringStringEntryProto) -> bool {
        entry.key() == self.key && entry.value() == zeros()
    }
}

fn zeros() -> String {
    "0".repeat(DIGITS)
}

impl Model {
    /// The digest of the file, or of the bytes, that the model was read from; `None` if the model
    /// was built in memory.
    ///
    /// # Errors
    /// If the file can no longer be read.
    pub fn sha256(&self) -> Result<Option<&str>> {
        let Some(source) = &self.source else {
            return Ok(None);
        };
        match source.sha256() {
            Ok(digest) => Ok(Some(digest)),
            Err(reason) => Err(self.io(io::Error::other(reason.clone()))),
        }
    }

    /// Writes the digest of another model into the metadata of this model, where
    /// [`crate::fuse_ahead`] left zeros.
    ///
    /// # Errors
    /// If the bytes that the other model was read from can no longer be read.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let settled = self
            .pending
            .take()
            .map_or(Ok(()), |pending| pending.settle(&mut self.proto));
        settled.map_err(|source| self.io(source))
    }

    /// Remembers that the metadata entry `key` is for the digest of the bytes that the model `of`
    /// was read from. The digest is filled in when this model is written. Returns the zeros that
    /// the caller stores in the entry until then; `None` if the bytes are unknown.
    pub(crate) fn await_sha256(&mut self, key: &str, of: &Model) -> Option<String> {
        self.pending = Some(Pending {
            key: key.to_owned(),
            of: of.source.clone()?,
        });
        Some(zeros())
    }

    /// Starts computing the digest in another thread, so that a later caller need not wait as long.
    /// Does nothing without threads.
    pub(crate) fn begin_sha256(&self) {
        if let Some(source) = self.source.clone().filter(|_| HAS_THREADS) {
            rayon::spawn(move || {
                source.sha256();
            });
        }
    }

    /// The digests of the file that the model was read from, and of the files with external data of
    /// its tensors. For a model that was built in memory, its encoded bytes are digested instead of
    /// the file.
    ///
    /// # Errors
    /// If a data file cannot be read.
    pub fn digests(&self) -> Result<Digests> {
        let own = match self.sha256()? {
            Some(own) => own.to_owned(),
            None => hexadecimal(Sha256::new_with_prefix(self.to_bytes()?)),
        };
        let mut data = BTreeMap::new();
        walk::parts(&mut self.proto.clone(), &mut |part| {
            if let Visited::Initializer(tensor) | Visited::Tensor(tensor) = part
                && tensor.is_external()
                && let location = self.externals.span(tensor)?.location
                && !data.contains_key(&location)
            {
                let digest = sha256(&self.externals.whole(tensor)?);
                data.insert(
                    location,
                    digest.map_err(|reason| self.externals.error(tensor, reason))?,
                );
            }
            Ok(())
        })?;
        Ok(Digests { sha256: own, data })
    }
}

/// The digest of a byte string, which is read in parts.
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
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::proto::{FunctionProto, TrainingInfoProto};
    use crate::onnx::{DataPlace, SaveOptions};

    /// A model whose encoding has fields after the metadata, folded by `fuse_ahead` and by `fuse`.
    fn folded() -> [Model; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let mut model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let [name, domain] = ["unused", "own"].map(|text| Some(text.to_owned()));
        model.proto.functions.push(FunctionProto {
            name,
            domain,
            ..Default::default()
        });
        model.proto.training_info.push(TrainingInfoProto::default());
        let own = StringStringEntryProto {
            key: Some("behind".into()),
            value: Some(zeros()),
        };
        model.proto.metadata_props.push(own);
        model.save(&path).unwrap();
        let model = Model::open(path).unwrap();
        let fused =
            [crate::fuse_ahead, crate::fuse].map(|fuse| fuse(&model, &Default::default()).unwrap());
        let digest = model.sha256().unwrap().unwrap().to_owned();
        assert!(
            fused[1]
                .model
                .proto
                .metadata_props
                .iter()
                .any(|entry| entry.value() == digest)
        );
        fused.map(|fused| fused.model)
    }

    fn digits(model: &Model) -> Vec<&str> {
        model
            .proto
            .metadata_props
            .iter()
            .map(|entry| entry.value())
            .filter(|value| value.len() == DIGITS)
            .collect()
    }

    #[test]
    fn digest_is_filled_in_for_every_way_of_writing() {
        let [mut ahead, fused] = folded();
        assert_eq!(digits(&ahead), [zeros(), zeros()]);
        let expected = fused.to_bytes().unwrap();
        assert_eq!(ahead.to_bytes().unwrap(), expected);
        let mut merged = ModelProto::default();
        for part in ahead.to_parts(1 << 12).unwrap() {
            let mut bytes = vec![];
            part.to_writer(&mut bytes).unwrap();
            merged.merge(&bytes[..]).unwrap();
        }
        assert_eq!(merged.encode_to_vec(), expected);
        for place in [DataPlace::Inside, DataPlace::Beside] {
            let written = [&ahead, &fused].map(|model| {
                let folder = tempfile::tempdir().unwrap();
                let path = folder.path().join("fused.onnx");
                model
                    .save_as(
                        &path,
                        &SaveOptions {
                            place,
                            ..Default::default()
                        },
                    )
                    .unwrap();
                std::fs::read(path).unwrap()
            });
            assert!(written[0] == written[1], "{place:?}");
        }
        ahead.settle().unwrap();
        assert_eq!(ahead.proto, fused.proto);
        // A digest replaces only zeros that unfold wrote itself.
        assert_eq!(digits(&ahead)[0], zeros());
    }

    #[test]
    fn changed_metadata_entry_is_kept() {
        let [mut ahead, _] = folded();
        ahead
            .proto
            .metadata_props
            .retain(|entry| entry.key() != "unfold.original");
        let written = Model::from_bytes(ahead.to_bytes().unwrap()).unwrap();
        assert_eq!(written.proto.metadata_props, ahead.proto.metadata_props);
    }
}
