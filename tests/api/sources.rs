//! Reads the modules of the crate, and resolves names to their definitions.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Attribute, Item, ItemImpl, UseTree, Visibility};

/// The names from the root of the crate to a module.
pub type ModulePath = Vec<String>;

/// The items of each module, and all `impl` blocks.
pub struct Sources {
    modules: HashMap<ModulePath, Vec<Item>>,
    pub impls: Vec<ItemImpl>,
}

/// A name that a module imports.
pub struct Import {
    /// The name in the module; `None` for all names of the source.
    pub name: Option<String>,
    /// The path to the source.
    pub source: ModulePath,
}

impl Sources {
    /// Parses the crate.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut sources = Sources {
            modules: HashMap::new(),
            impls: vec![],
        };
        let items = parsed(&root.join("lib.rs"));
        sources.add(vec![], &root, items);
        sources
    }

    /// Adds a module and its inner modules, whose files are in `folder`.
    fn add(&mut self, module: ModulePath, folder: &Path, items: Vec<Item>) {
        for item in &items {
            match item {
                Item::Impl(block) => self.impls.push(block.clone()),
                Item::Mod(inner) if !is_test(&inner.attrs) => {
                    let name = inner.ident.to_string();
                    let folder = folder.join(&name);
                    let content = inner.content.as_ref().map(|(_, items)| items.clone());
                    let items = content.unwrap_or_else(|| parsed(&file(&folder)));
                    self.add([&module[..], &[name]].concat(), &folder, items);
                }
                _ => {}
            }
        }
        self.modules.insert(module, items);
    }

    /// The items of a module.
    pub fn items(&self, module: &[String]) -> &[Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    /// Follows imports from a path to the definition of a type, a trait or a function. For an item
    /// of another crate, this is the import itself.
    pub fn definition(&self, path: &[String]) -> Option<&Item> {
        let (name, module) = path.split_last()?;
        let items = self.modules.get(module)?;
        let mut defined = items.iter().filter(|item| !matches!(item, Item::Mod(_)));
        if let Some(item) = defined.find(|item| name_of(item).as_ref() == Some(name)) {
            return Some(item);
        }
        let imports = items.iter().flat_map(|item| self.imports(module, item));
        let mut sources = imports.filter_map(|import| match &import.name {
            Some(imported) => (imported == name).then_some(import.source),
            None => Some([&import.source[..], std::slice::from_ref(name)].concat()),
        });
        sources.find_map(|source| self.definition(&source))
    }

    /// The names that an item of a module imports, if it is a `use`.
    pub fn imports(&self, module: &[String], item: &Item) -> Vec<Import> {
        let mut found = vec![];
        if let Item::Use(import) = item {
            leaves(&import.tree, vec![], &mut found);
        }
        for import in &mut found {
            import.source = self.absolute(module, &import.source);
        }
        found
    }

    /// A path from the root of the crate, or the path of another crate.
    fn absolute(&self, module: &[String], path: &[String]) -> ModulePath {
        let parent = &module[..module.len().saturating_sub(1)];
        match path[0].as_str() {
            "crate" => path[1..].to_vec(),
            "self" => [module, &path[1..]].concat(),
            "super" => [parent, &path[1..]].concat(),
            first => {
                let inner = [module, &[first.to_owned()]].concat();
                let is_here = self.modules.contains_key(&inner);
                if is_here {
                    [module, path].concat()
                } else {
                    path.to_vec()
                }
            }
        }
    }
}

/// The file of a module. The files of its inner modules would be in `folder`.
fn file(folder: &Path) -> PathBuf {
    let beside = folder.with_extension("rs");
    if beside.exists() {
        beside
    } else {
        folder.join("mod.rs")
    }
}

fn parsed(file: &Path) -> Vec<Item> {
    let text =
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let parsed =
        syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    parsed.items
}

/// Collects the imports of a tree. `path` is the path before the tree.
fn leaves(tree: &UseTree, mut path: ModulePath, found: &mut Vec<Import>) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            leaves(&step.tree, path, found);
        }
        UseTree::Group(group) => group
            .items
            .iter()
            .for_each(|tree| leaves(tree, path.clone(), found)),
        UseTree::Name(name) => {
            path.push(name.ident.to_string());
            found.push(Import {
                name: path.last().cloned(),
                source: path,
            });
        }
        UseTree::Rename(renamed) => {
            path.push(renamed.ident.to_string());
            found.push(Import {
                name: Some(renamed.rename.to_string()),
                source: path,
            });
        }
        UseTree::Glob(_) => found.push(Import {
            name: None,
            source: path,
        }),
    }
}

/// The name of a definition.
fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        Item::Trait(item) => item.ident.to_string(),
        Item::Type(item) => item.ident.to_string(),
        Item::Const(item) => item.ident.to_string(),
        Item::Fn(item) => item.sig.ident.to_string(),
        _ => return None,
    })
}

/// Whether a module is compiled only for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute
            .meta
            .require_list()
            .map(|list| list.tokens.to_string());
        attribute.path().is_ident("cfg")
            && condition.is_ok_and(|condition| {
                condition.starts_with("test") || condition.starts_with("all (test")
            })
    })
}

/// Whether an item is public.
pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}
