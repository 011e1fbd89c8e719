//! The results of `fuse` from which `tune` chooses.

use std::fmt;
use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;
use sha2::{Digest, Sha256};
use unfold::Target;
use unfold::onnx::Model;
use unfold::provenance::FoldOptions;
use unfold::run::Dims;
use unfold::{MemoryGoal, Slicing};

/// The options of `fuse` for a candidate, under their names in Python.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct CandidateOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    skip: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Target>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<MemoryGoal>,
}

impl CandidateOptions {
    /// The exported file: nothing folds, and `fuse` copies it.
    const EXPORTED: Self = Self {
        skip: Some("*"),
        target: None,
        memory: None,
    };
    const DEFAULT: Self = Self {
        skip: None,
        target: None,
        memory: None,
    };

    /// All candidates, in the order of a report.
    fn all() -> [Self; 7] {
        [
            Self::EXPORTED,
            Self::DEFAULT,
            Self::with_target(Target::Tract),
            Self::with_target(Target::Onnxruntime),
            Self::with_target(Target::Portable),
            Self::with_memory(MemoryGoal::Percent(50.0)),
            Self::with_memory(MemoryGoal::Min),
        ]
    }

    fn with_target(target: Target) -> Self {
        Self {
            target: Some(target),
            ..Self::DEFAULT
        }
    }

    fn with_memory(memory: MemoryGoal) -> Self {
        Self {
            memory: Some(memory),
            ..Self::DEFAULT
        }
    }

    /// The options as words of a command line. With slicing, this includes `sizes`, for which the
    /// peak of memory is computed.
    pub(crate) fn words(&self, sizes: &Dims) -> Vec<String> {
        let mut words = vec![];
        if let Some(skip) = self.skip {
            words.extend(["--skip".to_owned(), skip.to_owned()]);
        }
        if let Some(target) = self.target {
            words.extend(["--target".to_owned(), target.to_string()]);
        }
        if let Some(memory) = self.memory {
            words.extend(["--memory".to_owned(), memory.to_string()]);
            for (name, size) in sizes.iter() {
                words.extend(["--expect".to_owned(), format!("{name}={size}")]);
            }
        }
        words
    }

    fn fold_options(&self, sizes: &Dims) -> FoldOptions {
        let expect = sizes
            .iter()
            .map(|(name, size)| (name.to_owned(), size))
            .collect();
        FoldOptions {
            skip: self.skip.iter().map(|&skip| skip.to_owned()).collect(),
            target: self.target.unwrap_or_default(),
            slicing: Slicing {
                parts: None,
                memory: self.memory,
                expect,
            },
            ..FoldOptions::default()
        }
    }
}

impl fmt::Display for CandidateOptions {
    /// The name in reports, such as `--target tract`.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match *self {
            Self::EXPORTED => f.write_str("as exported"),
            Self::DEFAULT => f.write_str("fuse by default"),
            _ => f.write_str(&self.words(&Dims::default()).join(" ")),
        }
    }
}

/// A result of `fuse`.
pub(crate) struct Candidate {
    /// The options that produce it.
    pub options: CandidateOptions,
    /// The result.
    pub model: Model,
    /// Other options that produce the same model except for its metadata.
    pub equal: Vec<CandidateOptions>,
}

impl Candidate {
    /// The rank that decides among equally good candidates: the lowest rank wins. The default
    /// options have rank 0, and the exported file has the largest number.
    pub(crate) fn rank(&self) -> usize {
        CandidateOptions::all()
            .iter()
            .skip(1)
            .position(|options| *options == self.options)
            .unwrap_or(usize::MAX)
    }
}

/// The candidates for a model, all with the dimensions in `fix` fixed. Equal models become one
/// candidate. Slicing is planned for the sizes `sizes`.
///
/// # Errors
/// If the model cannot be folded, or its weights cannot be read.
pub(crate) fn candidates(
    model: &Model,
    sizes: &Dims,
    fix: &Dims,
    progress: &dyn Fn(&str, usize, usize),
) -> Result<Vec<Candidate>> {
    let all = CandidateOptions::all();
    let mut candidates: Vec<Candidate> = vec![];
    let mut fingerprints: Vec<Fingerprint> = vec![];
    for (done, options) in all.into_iter().enumerate() {
        progress(&format!("folding: {options}"), done, all.len());
        let fold_options = FoldOptions {
            fix: fix.clone(),
            ..options.fold_options(sizes)
        };
        let fused = unfold::fuse(model, &fold_options.into())?.model;
        let own = fingerprint(&fused)?;
        match fingerprints.iter().position(|other| *other == own) {
            Some(at) => candidates[at].equal.push(options),
            None => {
                fingerprints.push(own);
                candidates.push(Candidate {
                    options,
                    model: fused,
                    equal: vec![],
                });
            }
        }
    }
    Ok(candidates)
}

/// The digests of a model's protobuf message without weights, and of its weights.
type Fingerprint = [[u8; 32]; 2];

/// The digests of a model without its metadata, because the metadata name the options.
fn fingerprint(model: &Model) -> Result<Fingerprint> {
    let mut bare = model.clone();
    bare.proto.metadata_props.clear();
    let (mut message, mut weights) = (Hashing::default(), Hashing::default());
    bare.to_writers(&mut message, "weights", &mut weights)?;
    Ok([message, weights].map(|hashing| hashing.0.finalize().into()))
}

/// A writer that only computes a digest.
#[derive(Default)]
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(file: &str) -> Vec<(String, Vec<String>)> {
        let model = Model::open(format!("models/digits/{file}.onnx")).unwrap();
        let candidates =
            candidates(&model, &Dims::default(), &Dims::default(), &|_, _, _| {}).unwrap();
        candidates
            .iter()
            .map(|candidate| {
                let equal = candidate.equal.iter().map(ToString::to_string).collect();
                (candidate.options.to_string(), equal)
            })
            .collect()
    }

    #[test]
    fn equal_results_are_one_candidate() {
        let all = names("ln-dynamo");
        let listed: usize = all.iter().map(|(_, equal)| 1 + equal.len()).sum();
        assert_eq!(listed, CandidateOptions::all().len());
        assert_eq!(all[0], ("as exported".to_owned(), vec![]));
        assert_eq!(all[1].0, "fuse by default");
        // With `--target portable`, LayerNormalizations are kept, so the model differs from the
        // default.
        assert!(all.iter().any(|(name, _)| name == "--target portable"));
    }

    #[test]
    fn candidate_options_print_as_arguments() {
        let sizes: Dims = "batch=3".parse().unwrap();
        let memory = CandidateOptions::with_memory(MemoryGoal::Percent(50.0));
        assert_eq!(
            memory.words(&sizes),
            ["--memory", "50%", "--expect", "batch=3"]
        );
        assert_eq!(memory.to_string(), "--memory 50%");
        assert!(CandidateOptions::DEFAULT.words(&sizes).is_empty());
    }
}
