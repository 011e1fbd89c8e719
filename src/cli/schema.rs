//! The JSON schemas of `--json`, in `docs/schema`.
//!
//! They are generated from the types that are serialized, with the comments of their fields as
//! descriptions. `UPDATE_SCHEMAS=1 cargo test --release --lib schema` rewrites them.

use std::env;
use std::fs;
use std::path::Path;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

use crate::cli::diff::DiffJson;
use crate::cli::fuse_many::ManyJson;
use crate::cli::fuse_report::FuseJson;
use crate::cli::inspect::{InspectJson, StreamsJson};
use crate::cli::passes::PassesJson;
use crate::cli::prove::ProveJson;
use crate::cli::tune::TuneJson;
use crate::report::Report;

/// The file name of each schema, without its extension.
fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("bench", schema_of::<Report>()),
        ("bench-zoo", schema_of::<Vec<Report>>()),
        ("diff", schema_of::<DiffJson>()),
        ("fuse", schema_of::<FuseJson>()),
        ("fuse-many", schema_of::<ManyJson>()),
        ("inspect", schema_of::<InspectJson>()),
        ("inspect-streams", schema_of::<StreamsJson>()),
        ("passes", schema_of::<PassesJson>()),
        ("prove", schema_of::<ProveJson>()),
        ("tune", schema_of::<TuneJson>()),
    ]
}

/// The schema of the JSON to which a type is serialized.
fn schema_of<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

#[test]
fn documented_schemas_are_those_of_the_types() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema");
    for (name, schema) in schemas() {
        let path = folder.join(name).with_extension("json");
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if env::var_os("UPDATE_SCHEMAS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let documented = fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            documented, text,
            "{name}: the JSON changed; see this module"
        );
    }
}
