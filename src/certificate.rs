//! Certificates describe the changes of a model in a form that can be checked by other programs.
//! `docs/proof.md` defines the format.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::affine::plan::{Outcome, Plan, SitePlan, Stored};
use crate::error::{Error, Result};
use crate::onnx::{Digests, write_whole};
use crate::provenance::{FoldOptions, noted};
use crate::recipe::{Recipe, RecipeStep, float_name, float_named};

/// The version of the format.
const FORMAT: u32 = 1;

/// A certificate: the formula of every new tensor of a folded model, and the digests of both
/// models.
///
/// ```
/// use unfold::certificate::Certificate;
/// use unfold::onnx::Model;
///
/// let original = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&original, &Default::default())?;
/// # let folder = tempfile::tempdir()?;
/// # let (path, file) = (folder.path().join("fused.onnx"), folder.path().join("fused.json"));
/// fused.model.save(&path)?;
///
/// let digests = [original.digests()?, Model::open(&path)?.digests()?];
/// let certificate = Certificate::new(&fused.plan, Default::default(), digests);
/// certificate.save(&file)?;
///
/// let read = Certificate::open(&file)?;
/// assert_eq!(read.fused, certificate.fused);
/// for (one, other) in read.tensors.iter().zip(&fused.plan.tensors) {
///     assert_eq!(one.recipe.to_string(), other.recipe.to_string());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(into = "WrittenCertificate", try_from = "WrittenCertificate")]
pub struct Certificate {
    /// The version of unfold that wrote the certificate.
    pub unfold: String,
    /// The options of the run.
    pub options: FoldOptions,
    /// The digests of the original files.
    pub original: Digests,
    /// The digests of the folded model's files.
    pub fused: Digests,
    /// The outcome for each normalizer.
    pub sites: Vec<CertifiedSite>,
    /// The tensors that are in the folded model but not in the original, as formulas over the
    /// original's tensors.
    pub tensors: Vec<Stored>,
}

/// A normalizer and its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertifiedSite {
    /// The module path of the site, or the name of a node if no path is known.
    pub name: String,
    /// The short name of the kind of the site.
    pub kind: String,
    /// The outcome.
    pub outcome: Fate,
}

impl CertifiedSite {
    fn new(site: &SitePlan) -> Self {
        Self {
            name: site.name.clone(),
            kind: site.kind.name.to_owned(),
            outcome: Fate::from_site(site),
        }
    }
}

/// The outcome for a normalizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// Everything in the normalizer that can fold is folded.
    Folded,
    /// A part of the normalizer is folded, such as its affine or only the shift, and another part
    /// stays.
    Partly,
    /// The normalizer is unchanged.
    Kept,
}

impl Fate {
    pub(crate) fn from_site(site: &SitePlan) -> Self {
        match site.outcomes().any(Outcome::goes) {
            _ if site.is_folded() => Self::Folded,
            true => Self::Partly,
            false => Self::Kept,
        }
    }
}

/// A certificate in the format of its file.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenCertificate {
    certificate: u32,
    unfold: String,
    #[serde(deserialize_with = "noted")]
    options: FoldOptions,
    original: Digests,
    fused: Digests,
    sites: Vec<CertifiedSite>,
    tensors: Vec<WrittenTensor>,
}

/// A tensor in the format of the file.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
struct WrittenTensor {
    name: String,
    data_type: String,
    shape: Vec<usize>,
    sites: Vec<usize>,
    steps: Vec<RecipeStep>,
}

impl Certificate {
    /// The certificate of a plan, with the digests of the model before and after.
    pub fn new(plan: &Plan, options: FoldOptions, [original, fused]: [Digests; 2]) -> Self {
        Self {
            unfold: env!("CARGO_PKG_VERSION").to_owned(),
            options,
            original,
            fused,
            sites: plan.sites.iter().map(CertifiedSite::new).collect(),
            tensors: plan.tensors.clone(),
        }
    }

    /// Reads a certificate, which may be written by any program, and checks every step of every
    /// formula.
    ///
    /// # Errors
    /// If the file cannot be read, is not a certificate, or has a tensor with an invalid step.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Certificate {
            file: path.to_owned(),
            reason: error.to_string(),
        })
    }

    /// Writes the certificate completely or not at all. Returns the path of the file, after
    /// symbolic links are resolved.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let path = path.as_ref();
        let text = serde_json::to_string(self).map_err(std::io::Error::from);
        let written = text.and_then(|text| write_whole(path, (text + "\n").as_bytes()));
        written.map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })
    }
}

impl From<Stored> for WrittenTensor {
    fn from(tensor: Stored) -> Self {
        Self {
            data_type: float_name(tensor.data_type),
            shape: tensor.recipe.shape().to_vec(),
            steps: tensor.recipe.to_steps(),
            name: tensor.name,
            sites: tensor.sites,
        }
    }
}

impl From<Certificate> for WrittenCertificate {
    fn from(certificate: Certificate) -> Self {
        let Certificate {
            unfold,
            options,
            original,
            fused,
            sites,
            tensors,
        } = certificate;
        Self {
            certificate: FORMAT,
            unfold,
            options,
            original,
            fused,
            sites,
            tensors: tensors.into_iter().map(WrittenTensor::from).collect(),
        }
    }
}

impl TryFrom<WrittenCertificate> for Certificate {
    type Error = String;

    fn try_from(written: WrittenCertificate) -> std::result::Result<Self, String> {
        let WrittenCertificate {
            certificate,
            unfold,
            options,
            original,
            fused,
            sites,
            tensors,
        } = written;
        if certificate != FORMAT {
            return Err(format!(
                "its format is {certificate}, and this version knows {FORMAT}"
            ));
        }
        let mut names = HashSet::new();
        let mut stored = vec![];
        for tensor in tensors {
            let found = read(&tensor, sites.len())
                .map_err(|flaw| format!("tensor `{}`: {flaw}", tensor.name))?;
            if !names.insert(tensor.name) {
                return Err(format!("tensor `{}`: it is there twice", found.name));
            }
            stored.push(found);
        }
        Ok(Self {
            unfold,
            options,
            original,
            fused,
            sites,
            tensors: stored,
        })
    }
}

/// Converts a tensor of a certificate with `count` sites. The error says which part of the tensor
/// is invalid.
fn read(tensor: &WrittenTensor, count: usize) -> std::result::Result<Stored, String> {
    let WrittenTensor {
        name,
        data_type,
        shape,
        sites,
        steps,
    } = tensor;
    let data_type = float_named(data_type).ok_or_else(|| format!("its type is `{data_type}`"))?;
    let recipe = Recipe::from_steps(steps)?;
    if recipe.shape() != shape {
        return Err(format!(
            "its extents are {shape:?}, and its last step makes {:?}",
            recipe.shape()
        ));
    }
    match sites.iter().find(|&&site| site >= count) {
        Some(site) => Err(format!("there is no site {site}")),
        None => Ok(Stored {
            name: name.clone(),
            data_type,
            recipe,
            replaces: None,
            sites: sites.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(tensors: &str) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.json");
        let digests = r#"{"sha256":"00"}"#;
        let text = format!(
            r#"{{"certificate":1,"unfold":"0.1.0","options":{{}},"original":{digests},"fused":{digests},
                "sites":[{{"name":"n","kind":"UN","outcome":"folded"}}],"tensors":[{tensors}]}}"#
        );
        std::fs::write(&file, text).unwrap();
        match Certificate::open(&file) {
            Ok(certificate) => format!("{} tensors", certificate.tensors.len()),
            Err(error) => {
                let line = error.to_string();
                assert!(
                    line.starts_with(&file.display().to_string()) && !line.contains('\n'),
                    "{line}"
                );
                line.split("be used: ").last().unwrap().to_owned()
            }
        }
    }

    fn tensor(data_type: &str, shape: usize, site: usize) -> String {
        format!(
            r#"{{"name":"t","data_type":"{data_type}","shape":[{shape}],"sites":[{site}],
                "steps":[{{"op":"literal","numbers":[0],"shape":[2]}}]}}"#
        )
    }

    #[test]
    fn certificate_fields_are_validated() {
        let good = tensor("float16", 2, 0);
        assert_eq!(open(&good), "1 tensors");
        assert!(open(&tensor("int8", 2, 0)).starts_with("tensor `t`: its type is `int8`"));
        assert!(
            open(&tensor("float32", 3, 0))
                .starts_with("tensor `t`: its extents are [3], and its last step")
        );
        assert!(open(&tensor("float32", 2, 1)).starts_with("tensor `t`: there is no site 1"));
        assert!(open(&format!("{good},{good}")).starts_with("tensor `t`: it is there twice"));
        assert!(open(&good.replace("literal", "guess")).starts_with("unknown variant `guess`"));
        assert!(open(&good.replace("[0],\"shape\"", "[null],\"shape\"")).contains("null"));
        assert!(
            open(&good.replace(r#""op":"literal","#, r#""op":"neg","inputs":[0],"#))
                .contains("step 0: ")
        );
    }
}
