//! Lists the public items, one in each line. The lines below an item list its members.

use quote::ToTokens;
use syn::{Attribute, Fields, ImplItem, Item, ItemImpl, Meta, Signature, TraitItem, Type};

use crate::WIRE_FORMAT;
use crate::sources::{ModulePath, Sources, is_public};

/// The description of an API.
pub struct Description {
    pub lines: Vec<String>,
    /// The number of types, traits, functions and constants.
    pub items: usize,
    /// The number of modules that they are in.
    pub modules: usize,
}

/// Describes the items that users of the library can name.
pub fn describe(sources: &Sources) -> Description {
    let mut found = vec![];
    module(sources, &[], &mut found);
    found.sort();
    let modules = found
        .iter()
        .filter(|(_, lines)| lines[0].starts_with("mod "));
    let modules = modules.count();
    Description {
        items: found.len() - modules,
        modules,
        lines: found.into_iter().flat_map(|(_, lines)| lines).collect(),
    }
}

/// The path of an item, and its lines.
type Described = (ModulePath, Vec<String>);

/// Describes the public items of a module and of its inner modules.
fn module(sources: &Sources, path: &[String], found: &mut Vec<Described>) {
    for item in sources.items(path) {
        match item {
            Item::Mod(inner) if is_public(&inner.vis) && !is_hidden(&inner.attrs) => {
                let inner = [path, &[inner.ident.to_string()]].concat();
                let name = inner.join("::");
                if name == WIRE_FORMAT {
                    found.push((inner.clone(), vec![wire_format(sources, &inner)]));
                    continue;
                }
                found.push((inner.clone(), vec![format!("mod {name}")]));
                module(sources, &inner, found);
            }
            Item::Use(import) if is_public(&import.vis) => {
                for import in sources.imports(path, item) {
                    let name = import.name.expect("a facade names what it exports");
                    let at = [path, &[name]].concat();
                    let lines = match sources.definition(&import.source) {
                        Some(item) => definition(sources, item, &at).unwrap_or_default(),
                        None => vec![format!(
                            "use {} as {}",
                            import.source.join("::"),
                            at.join("::")
                        )],
                    };
                    found.push((at, lines));
                }
            }
            _ => found.extend(own(sources, item, path)),
        }
    }
}

/// The description of an item that a module itself defines, if it is public.
fn own(sources: &Sources, item: &Item, module: &[String]) -> Option<Described> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        _ => return None,
    };
    if !is_public(visibility) {
        return None;
    }
    let at = [module, &[name.to_string()]].concat();
    Some((at.clone(), definition(sources, item, &at)?))
}

/// The lines of a definition under a name.
fn definition(sources: &Sources, item: &Item, at: &[String]) -> Option<Vec<String>> {
    let name = at.join("::");
    Some(match item {
        Item::Struct(item) => {
            let head = format!("struct {name}{}", plain(&item.generics));
            let body = fields(&item.fields);
            [
                vec![head],
                body,
                members(sources, &item.ident.to_string(), &item.attrs),
            ]
            .concat()
        }
        Item::Enum(item) => {
            let head = format!("enum {name}{}", plain(&item.generics));
            let variants = item.variants.iter().flat_map(|variant| {
                let fields = fields(&variant.fields)
                    .into_iter()
                    .map(|field| format!("    {field}"));
                [format!("    {}", variant.ident)]
                    .into_iter()
                    .chain(fields)
                    .collect::<Vec<_>>()
            });
            [
                vec![head],
                variants.collect(),
                members(sources, &item.ident.to_string(), &item.attrs),
            ]
            .concat()
        }
        Item::Trait(item) => {
            let head = format!("trait {name}: {}", plain(&item.supertraits));
            let methods = item.items.iter().filter_map(|item| match item {
                TraitItem::Fn(method) => Some(format!("    {}", signature(&method.sig))),
                _ => None,
            });
            [vec![head], methods.collect()].concat()
        }
        Item::Type(item) => vec![format!(
            "type {name}{} = {}",
            plain(&item.generics),
            plain(&item.ty)
        )],
        Item::Const(item) => vec![format!("const {name}: {}", plain(&item.ty))],
        Item::Fn(item) => {
            vec![signature(&item.sig).replacen(&item.sig.ident.to_string(), &name, 1)]
        }
        _ => return None,
    })
}

/// The fields whose visibility is not restricted, as `pub(crate)` would.
fn fields(fields: &Fields) -> Vec<String> {
    let public = fields.iter().enumerate().filter_map(|(place, field)| {
        let name = field
            .ident
            .as_ref()
            .map_or(place.to_string(), ToString::to_string);
        let is_shown = is_public(&field.vis) || matches!(field.vis, syn::Visibility::Inherited);
        is_shown.then(|| format!("    {name}: {}", plain(&field.ty)))
    });
    public.collect()
}

/// The methods of a type, and the traits that it implements.
fn members(sources: &Sources, name: &str, attributes: &[Attribute]) -> Vec<String> {
    let blocks = sources
        .impls
        .iter()
        .filter(|block| self_name(block).as_deref() == Some(name));
    let (of_traits, own): (Vec<&ItemImpl>, Vec<&ItemImpl>) =
        blocks.partition(|block| block.trait_.is_some());
    let mut lines: Vec<String> = own.iter().flat_map(|block| methods(block)).collect();
    lines.sort();
    let mut traits: Vec<String> = of_traits
        .iter()
        .filter_map(|block| Some(plain(&block.trait_.as_ref()?.1)))
        .collect();
    traits.extend(attributes.iter().flat_map(derived));
    traits.sort();
    if !traits.is_empty() {
        lines.push(format!("    impl {}", traits.join(", ")));
    }
    lines
}

/// The public methods and constants of a block.
fn methods(block: &ItemImpl) -> Vec<String> {
    let public = block.items.iter().filter_map(|item| match item {
        ImplItem::Fn(method) if is_public(&method.vis) => {
            Some(format!("    {}", signature(&method.sig)))
        }
        ImplItem::Const(item) if is_public(&item.vis) => {
            Some(format!("    const {}: {}", item.ident, plain(&item.ty)))
        }
        _ => None,
    });
    public.collect()
}

/// The name of the type that a block is for.
fn self_name(block: &ItemImpl) -> Option<String> {
    match &*block.self_ty {
        Type::Path(path) => Some(path.path.segments.last()?.ident.to_string()),
        _ => None,
    }
}

/// The traits that an attribute derives.
fn derived(attribute: &Attribute) -> Vec<String> {
    match &attribute.meta {
        Meta::List(list) if list.path.is_ident("derive") => {
            let traits = list.tokens.to_string().replace(' ', "");
            traits.split(',').map(str::to_owned).collect()
        }
        _ => vec![],
    }
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| plain(attribute) == "#[doc(hidden)]")
}

/// One line for the messages of ONNX.
fn wire_format(sources: &Sources, module: &[String]) -> String {
    let items = sources.items(module).iter();
    let types = items.filter(|item| matches!(item, Item::Struct(_) | Item::Enum(_)));
    format!(
        "mod {WIRE_FORMAT}: {} messages of ONNX's format, which are not counted",
        types.count()
    )
}

fn signature(signature: &Signature) -> String {
    let text = plain(signature);
    text.replace(",)", ")")
}

/// Writes tokens in one line, roughly as rustfmt does.
fn plain(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in SPACES {
        text = text.replace(spaced, tight);
    }
    text.trim().to_owned()
}

const SPACES: &[(&str, &str)] = &[
    (" :: ", "::"),
    (":: ", "::"),
    (" < ", "<"),
    ("< ", "<"),
    (" >", ">"),
    (" ,", ","),
    (", >", ">"),
    (" (", "("),
    ("( ", "("),
    (" )", ")"),
    ("& ", "&"),
    ("[ ", "["),
    (" ]", "]"),
    (" [", " ["),
    ("# [", "#["),
    (" : ", ": "),
    (" ;", ";"),
    ("->", "-> "),
    ("->  ", "-> "),
    ("fn(", "fn("),
    ("&'o dyn Fn(", "&'o dyn Fn("),
];
