//! The module of the original program that a node comes from, as the exporter recorded it.

use crate::ir::regions::region_path;
use crate::ir::{Graph, NodeId};
use crate::onnx::proto::NodeProto;

/// The module path of a node, outermost first, and the classes of its modules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scope {
    /// The path in the model, such as `blocks.0.norm1`, prefixed by the region path of the node's
    /// body.
    pub path: String,
    /// Class names from the outermost to the innermost module, such as `un.UN1d`.
    pub classes: Vec<String>,
}

/// Reads the scope of a node from the metadata of torch's dynamo exporter. Without this metadata,
/// reads the scope from the node's name, in which torch's legacy exporter and tf2onnx separate
/// modules by slashes.
pub(crate) fn scope(graph: &Graph, node: NodeId) -> Scope {
    let proto = graph.node(node);
    let path = region_path(proto);
    let mut scope = written(proto, path);
    if !scope.path.is_empty() {
        scope.path.insert_str(0, path);
    }
    scope
}

/// The module scope of a node in the body at this region path.
fn written(proto: &NodeProto, path: &str) -> Scope {
    if let Some(names) = metadata(proto, "pkg.torch.onnx.name_scopes") {
        // The last entry is the node itself, and the entries before it are its modules.
        let module = names.iter().rev().skip(1).find(|name| !name.is_empty());
        let mut classes = metadata(proto, "pkg.torch.onnx.class_hierarchy").unwrap_or_default();
        classes.pop();
        return Scope {
            path: module.cloned().unwrap_or_default(),
            classes,
        };
    }
    let name = proto.name().strip_prefix(path).unwrap_or(proto.name());
    let Some((modules, _)) = name.trim_start_matches('/').rsplit_once('/') else {
        return Scope::default();
    };
    Scope {
        path: dotted(modules),
        classes: vec![],
    }
}

/// A list of strings in the metadata of a node.
fn metadata(proto: &NodeProto, key: &str) -> Option<Vec<String>> {
    let mut entries = proto.metadata_props.iter();
    let entry = entries.find(|entry| entry.key() == key)?;
    Some(python_list(entry.value()))
}

/// Converts `blocks/blocks.0/norm1/un` to the module path `blocks.0.norm1.un`. A step that extends
/// the previous one, as `blocks.0` extends `blocks`, replaces it.
fn dotted(modules: &str) -> String {
    let mut path = String::new();
    for step in modules.split('/') {
        let last = path.rsplit('.').next().unwrap_or_default();
        match step.split_once('.') {
            Some((first, rest)) if !last.is_empty() && first == last => {
                path = format!("{path}.{rest}");
            }
            _ if path.is_empty() => path = step.to_owned(),
            _ => path = format!("{path}.{step}"),
        }
    }
    path
}

/// Parses the text of a Python list of strings, such as `['', 'blocks', "it's"]`.
fn python_list(text: &str) -> Vec<String> {
    let mut items = vec![];
    let mut rest = text.chars().peekable();
    while let Some(quote) = rest.next() {
        if quote != '\'' && quote != '"' {
            continue;
        }
        let mut item = String::new();
        while let Some(c) = rest.next() {
            match c {
                '\\' => item.extend(rest.next()),
                c if c == quote => break,
                c => item.push(c),
            }
        }
        items.push(item);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_list_is_parsed() {
        assert_eq!(
            python_list("['', 'blocks.0', \"it's\"]"),
            ["", "blocks.0", "it's"]
        );
        assert!(python_list("[]").is_empty());
    }

    #[test]
    fn legacy_paths_are_joined_with_dots() {
        assert_eq!(dotted("blocks/blocks.0/norm1/un"), "blocks.0.norm1.un");
        assert_eq!(
            dotted("layers.2/blocks/blocks.1/norm2"),
            "layers.2.blocks.1.norm2"
        );
        assert_eq!(dotted("norm"), "norm");
    }
}
