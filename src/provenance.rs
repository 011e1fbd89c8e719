//! Records the origin of a folded model in its metadata.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Deserializer, Serialize};

use crate::affine::plan::{Outcome, Plan, SitePlan, StreamPlan, Tidy};
use crate::onnx::Model;
use crate::onnx::proto::StringStringEntryProto;
use crate::passes::half::{EndType, HalfType};
use crate::passes::legalize::Target;
use crate::passes::slice::{SLICING, Slicing};
use crate::run::Dims;

/// The options that change the result of folding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct FoldOptions {
    /// The names or kinds of sites that stay. They may be patterns with `*` and `?`.
    pub skip: Vec<String>,
    /// The limit for growth by copies of shared weights, in percent of the weights.
    #[serde(skip_serializing_if = "is_usual")]
    pub max_growth: f64,
    /// Whether residual streams are centred, so that LayerNormalizations become RMS normalizations.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub centre: bool,
    /// Whether a normalizer is removed if later normalizers cancel its scale. The result is equal
    /// except for the ε of the later normalizers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub merge_norms: bool,
    /// Whether a normalizer is taken as constant if `var + ε` rounds to its ε in floating point.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub constant_norms: bool,
    /// The k of the factor `2^-k` that scales residual streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_stream: Option<u32>,
    /// The engines for which the result is written.
    pub target: Target,
    /// The half-precision type of the result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<HalfType>,
    /// The type of inputs and outputs of a converted result.
    #[serde(skip_serializing_if = "is_float32")]
    pub io: EndType,
    /// The sizes to which open dimensions of the inputs are fixed.
    #[serde(skip_serializing_if = "Dims::is_empty")]
    pub fix: Dims,
    /// The regions that run in parts, to limit the memory of activations.
    #[serde(skip_serializing_if = "is_none_sliced")]
    pub slicing: Slicing,
    /// The pass, or the number of changes, after which the run stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<String>,
}

/// The default limit for growth by copies of shared weights, in percent of the weights.
const MAX_GROWTH: f64 = 5.0;

fn is_usual(max_growth: &f64) -> bool {
    *max_growth == MAX_GROWTH
}

fn is_float32(ends: &EndType) -> bool {
    *ends == EndType::Float32
}

fn is_none_sliced(slicing: &Slicing) -> bool {
    *slicing == Slicing::default()
}

impl Default for FoldOptions {
    fn default() -> Self {
        Self {
            skip: vec![],
            max_growth: MAX_GROWTH,
            centre: false,
            merge_norms: false,
            constant_norms: false,
            scale_stream: None,
            target: Target::default(),
            to: None,
            io: EndType::Float32,
            fix: Dims::default(),
            slicing: Slicing::default(),
            stop_after: None,
        }
    }
}

/// Reads the options in a file. If they have no target, they were written by a version of unfold
/// whose default was the portable form, which is then the target.
pub(crate) fn noted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FoldOptions, D::Error> {
    let mut options = serde_json::Map::deserialize(deserializer)?;
    options
        .entry("target")
        .or_insert_with(|| serde_json::json!(Target::Portable));
    serde_json::from_value(options.into()).map_err(serde::de::Error::custom)
}

/// The record of one run of unfold in the metadata of a folded model.
///
/// The metadata has an entry for each field, such as `unfold.version`. If a model is folded again,
/// the entries of the second run begin with `unfold.2.`, and the earlier entries stay.
///
/// ```
/// use unfold::onnx::Model;
/// use unfold::provenance::Provenance;
///
/// let model = Model::open("models/digits/un-dynamo.onnx")?;
/// let fused = unfold::fuse(&model, &Default::default())?.model;
/// let [once] = &Provenance::from_model(&fused)[..] else { panic!("it was folded once") };
/// assert_eq!(once.original.as_deref(), model.sha256()?);
/// assert_eq!(once.folded, "UN 7, attention scale 6, biased 12");
/// assert!(Provenance::from_model(&model).is_empty());
/// # Ok::<(), unfold::error::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Provenance {
    /// The version of unfold.
    pub version: String,
    /// The SHA-256 of the file or of the bytes that were folded; `None` if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    /// The number of completely or partly folded sites of each kind, such as `UN 25, attention
    /// scale 12`.
    pub folded: String,
    /// The number of bytes that copies of shared weights and stored constants added. The limit for
    /// growth applies to all runs together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grown: Option<u64>,
    /// The options.
    pub options: FoldOptions,
}

const KEYS: [&str; 5] = ["version", "original", "folded", "grown", "options"];

/// The key of an entry of a run, by the index of the run.
fn key(time: usize, name: &str) -> String {
    match time {
        0 => format!("unfold.{name}"),
        _ => format!("unfold.{}.{name}", time + 1),
    }
}

impl Provenance {
    /// The records in a model, the oldest first. Any program can write metadata, so the records are
    /// not trustworthy.
    pub fn from_model(model: &Model) -> Vec<Self> {
        let entries: HashMap<&str, &str> = model
            .proto
            .metadata_props
            .iter()
            .map(|entry| (entry.key(), entry.value()))
            .collect();
        (0..)
            .map_while(|time| Self::from_entries(&entries, time))
            .collect()
    }

    /// Reads the record of the run with the index `time`. `None` if there is no such record.
    fn from_entries(entries: &HashMap<&str, &str>, time: usize) -> Option<Self> {
        let [version, original, folded, grown, options] = KEYS.map(|name| {
            let value = entries.get(key(time, name).as_str());
            value.map(|&value| value.to_owned())
        });
        let options = options.as_deref().unwrap_or("{}");
        let options = noted(&mut serde_json::Deserializer::from_str(options)).ok();
        Some(Self {
            version: version?,
            original,
            folded: folded.unwrap_or_default(),
            grown: grown.and_then(|grown| grown.parse().ok()),
            options: options.unwrap_or_default(),
        })
    }

    /// Adds to `model` the record of the run that folded `original` to `model`.
    pub(crate) fn note(model: &mut Model, original: &Model, plan: &Plan, options: FoldOptions) {
        let taken: HashSet<&str> = model
            .proto
            .metadata_props
            .iter()
            .map(|entry| entry.key())
            .collect();
        // An index is chosen for which no program has written an entry yet, so that no entry is
        // replaced and no name occurs twice.
        let time = (Self::from_model(model).len()..)
            .find(|&time| !KEYS.iter().any(|name| taken.contains(&key(time, name)[..])))
            .unwrap_or_default();
        let options = Some(serde_json::json!(options).to_string());
        let version = Some(env!("CARGO_PKG_VERSION").to_owned());
        let grown = (plan.growth > 0).then(|| plan.growth.to_string());
        let original = model.await_sha256(&key(time, "original"), original);
        let values = [version, original, Some(folded(plan)), grown, options];
        let entries = KEYS.iter().zip(values).filter_map(|(name, value)| {
            Some(StringStringEntryProto {
                key: Some(key(time, name)),
                value: Some(value?),
            })
        });
        model.proto.metadata_props.extend(entries);
    }
}

/// The kinds of the sites that were folded completely or in part, with their counts, in the order
/// of the sites.
fn folded(plan: &Plan) -> String {
    let mut counts: Vec<(&str, usize)> = vec![];
    for site in plan
        .sites
        .iter()
        .filter(|site: &&SitePlan| site.outcomes().any(Outcome::goes))
    {
        match counts.iter_mut().find(|(kind, _)| *kind == site.kind.name) {
            Some((_, count)) => *count += 1,
            None => counts.push((site.kind.name, 1)),
        }
    }
    let Tidy {
        constants,
        duplicates,
        biased,
        selected,
        untold,
        attentions,
        ..
    } = plan.tidy;
    let streams =
        |is: fn(&StreamPlan) -> bool| plan.streams.iter().filter(|stream| is(stream)).count();
    let merged = plan.merged.len();
    let placed = plan
        .placed
        .iter()
        .filter(|placed| placed.is_moved())
        .count();
    let others = [
        ("centring", streams(StreamPlan::is_centred)),
        ("scaling", streams(StreamPlan::is_scaled)),
        ("merging", merged),
        ("constant norm", plan.constants()),
        ("placement", placed),
        ("constant", constants),
        ("duplicate", duplicates),
        ("biased", biased),
        ("demand", selected),
        ("untold", untold),
        ("attention", attentions),
        (
            SLICING,
            plan.memory.as_ref().map_or(0, |memory| memory.cuts.len()),
        ),
    ];
    counts.extend(others.into_iter().filter(|(_, count)| *count > 0));
    let told: Vec<String> = counts
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    told.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fold(model: &Model, skip: &[&str]) -> Model {
        let options = crate::FuseOptions {
            skip: skip.iter().map(|&skip| skip.to_owned()).collect(),
            ..Default::default()
        };
        crate::fuse(model, &options).unwrap().model
    }

    /// The digest of the original in each record of the model.
    fn original(model: &Model) -> Vec<Option<String>> {
        let notes = Provenance::from_model(model).into_iter();
        notes.map(|time| time.original).collect()
    }

    #[test]
    fn original_digest_is_that_of_the_file_read() {
        let bytes = std::fs::read("models/digits/un-dynamo.onnx").unwrap();
        let read = Model::from_bytes(bytes.clone()).unwrap();
        let digest = Model::open("models/digits/un-dynamo.onnx")
            .unwrap()
            .sha256()
            .unwrap()
            .unwrap()
            .to_owned();
        assert_eq!(digest.len(), 64);
        let partly = fold(&read, &["blocks.0.*"]);
        assert_eq!(original(&partly), [Some(digest.clone())]);
        // The intermediate result was never written to a file.
        assert_eq!(original(&fold(&partly, &[])), [Some(digest.clone()), None]);
        assert_eq!(
            original(&fold(&Model::from_proto(read.proto.clone()), &[])),
            [None]
        );
        let again = Model::from_bytes(partly.to_bytes().unwrap()).unwrap();
        let own = again.sha256().unwrap().unwrap().to_owned();
        assert_eq!(original(&fold(&again, &[])), [Some(digest), Some(own)]);
    }

    #[test]
    fn provenance_keys_are_unique() {
        let mut model = Model::open("models/digits/un-dynamo.onnx").unwrap();
        let own = StringStringEntryProto {
            key: Some("unfold.folded".into()),
            value: Some("by hand".into()),
        };
        model.proto.metadata_props.push(own);
        let fused = crate::fuse(&model, &Default::default()).unwrap().model;
        let mut keys: Vec<&str> = fused
            .proto
            .metadata_props
            .iter()
            .map(|entry| entry.key())
            .collect();
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), count);
        assert!(keys.contains(&"unfold.2.version"), "{keys:?}");
    }
}
