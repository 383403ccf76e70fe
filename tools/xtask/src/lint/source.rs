//! The modules, items and paths of a crate's sources, read from their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Text;

/// The names that a module makes visible and the paths that it names.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) file: String,
    pub(super) items: BTreeSet<String>,
    /// `use` declarations and paths in code that begin with `crate`, `super` or `self`.
    pub(super) paths: Vec<Named>,
}

/// A path in a module.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) segments: Vec<String>,
    pub(super) origin: Origin,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A path in code.
    Code,
    /// A `use` declaration inside a function.
    LocalUse,
    /// A `use` declaration of the module, with the name that it makes visible (`*` for all).
    Use { name: String, public: bool },
}

/// All modules of one target, by path from its root. Modules for tests only are left out.
pub(super) type Modules = BTreeMap<Vec<String>, Module>;

/// Reads the target whose first file is `root`, and every file that its `mod` lines name.
pub(super) fn modules(root: &str, texts: &[Text]) -> Modules {
    let mut reader = Reader {
        texts,
        modules: Modules::new(),
    };
    reader.file(root, parent(root), Vec::new());
    reader.modules
}

struct Reader<'a> {
    texts: &'a [Text],
    modules: Modules,
}

/// Where the reader stands.
#[derive(Clone, Copy)]
struct Scope<'a> {
    module: &'a [String],
    /// The folder of the files that `mod` lines name here.
    folder: &'a str,
    /// False inside functions, types and macros.
    of_module: bool,
}

impl Reader<'_> {
    fn file(&mut self, path: &str, folder: &str, module: Vec<String>) {
        let Some(text) = self.texts.iter().find(|text| text.path == path) else {
            return; // generated, or selected by a condition that does not hold
        };
        // rustc reports what is not Rust.
        let tokens = TokenStream::from_str(&text.text).unwrap_or_default();
        let scope = Scope {
            module: &module,
            folder,
            of_module: true,
        };
        self.enter(path, scope, tokens);
    }

    fn enter(&mut self, file: &str, scope: Scope<'_>, tokens: TokenStream) {
        let module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        self.modules.insert(scope.module.to_vec(), module);
        self.scan(file, scope, tokens);
    }

    fn scan(&mut self, file: &str, scope: Scope<'_>, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let (mut at, mut public, mut other_file) = (0, false, None);
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at + 1..];
            at += 1;
            match token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    let attribute = rest.first().map(TokenTree::to_string).unwrap_or_default();
                    let attribute: String = attribute.split_whitespace().collect();
                    if attribute.starts_with("[cfg(test") || attribute.starts_with("[cfg(all(test") {
                        at += item_length(rest);
                    } else if let Some(path) = attribute.strip_prefix("[path=\"") {
                        other_file = path.strip_suffix("\"]").map(str::to_owned);
                    }
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "pub" => {
                        public = true;
                        at += usize::from(matches!(rest.first(), Some(TokenTree::Group(_))));
                        continue;
                    }
                    "mod" if scope.of_module => {
                        let other_file = other_file.take();
                        self.child(file, scope, rest, other_file);
                        at += 2;
                    }
                    "use" => {
                        let end = rest.iter().position(is_end).unwrap_or(rest.len());
                        let mut leaves = Vec::new();
                        use_tree(&rest[..end], &mut Vec::new(), &mut leaves);
                        for (segments, name) in leaves {
                            let origin = match scope.of_module {
                                true => Origin::Use { name, public },
                                false => Origin::LocalUse,
                            };
                            self.name(scope, segments, origin);
                        }
                        at += end + 1;
                    }
                    "crate" | "super" | "self" if is_path(rest) => {
                        let (segments, length) = path(&tokens[at - 1..]);
                        self.name(scope, segments, Origin::Code);
                        at += length - 1;
                    }
                    "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    | "macro_rules"
                        if scope.of_module =>
                    {
                        let item = rest.iter().find_map(|token| match token {
                            TokenTree::Ident(ident) if *ident != "mut" => Some(ident.to_string()),
                            _ => None,
                        });
                        self.module(scope).items.extend(item);
                    }
                    _ => {}
                },
                TokenTree::Group(group) => {
                    let inner = Scope {
                        of_module: false,
                        ..scope
                    };
                    self.scan(file, inner, group.stream());
                }
                _ => {}
            }
            public = false;
        }
    }

    /// `rest` follows the word `mod`.
    fn child(&mut self, file: &str, scope: Scope<'_>, rest: &[TokenTree], other_file: Option<String>) {
        let [TokenTree::Ident(name), body, ..] = rest else {
            return; // not a module: a macro's pattern
        };
        let name = name.to_string();
        let module = [scope.module, std::slice::from_ref(&name)].concat();
        let folder = format!("{}/{name}", scope.folder);
        match body {
            TokenTree::Group(body) => {
                let scope = Scope {
                    module: &module,
                    folder: &folder,
                    of_module: true,
                };
                self.enter(file, scope, body.stream());
            }
            _ if other_file.is_some() => {
                let path = normal(&format!("{}/{}", parent(file), other_file.unwrap_or_default()));
                self.file(&path, parent(&path), module);
            }
            _ => {
                let candidates = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
                let exists = |path: &&String| self.texts.iter().any(|text| text.path == **path);
                if let Some(path) = candidates.iter().find(exists) {
                    self.file(path, &folder, module);
                }
            }
        }
    }

    fn module(&mut self, scope: Scope<'_>) -> &mut Module {
        self.modules.entry(scope.module.to_vec()).or_default()
    }

    fn name(&mut self, scope: Scope<'_>, segments: Vec<String>, origin: Origin) {
        self.module(scope).paths.push(Named { segments, origin });
    }
}

/// The tokens of the item behind an attribute's `#`, so that they can be left out.
fn item_length(rest: &[TokenTree]) -> usize {
    let ends = |token: &TokenTree| {
        let is_body = |group: &proc_macro2::Group| group.delimiter() == Delimiter::Brace;
        is_end(token) || matches!(token, TokenTree::Group(group) if is_body(group))
    };
    let is_word = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if *word == "use");
    let is_use = rest.iter().take(4).any(is_word);
    let end = match is_use {
        true => rest.iter().position(is_end),
        false => rest.iter().position(ends),
    };
    end.map_or(rest.len(), |end| end + 1)
}

fn is_end(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';')
}

/// Whether `::` and a name follow.
fn is_path(rest: &[TokenTree]) -> bool {
    let colon = |at: usize| matches!(rest.get(at), Some(TokenTree::Punct(p)) if p.as_char() == ':');
    colon(0) && colon(1) && matches!(rest.get(2), Some(TokenTree::Ident(_)))
}

/// The segments of the path that `tokens` begins with, and its length in tokens.
fn path(tokens: &[TokenTree]) -> (Vec<String>, usize) {
    let mut segments = vec![tokens[0].to_string()];
    let mut at = 1;
    while is_path(&tokens[at..]) {
        segments.push(tokens[at + 2].to_string());
        at += 3;
    }
    (segments, at)
}

/// Adds each leaf of a `use` tree with the name that it makes visible.
fn use_tree(tokens: &[TokenTree], prefix: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    let depth = prefix.len();
    let mut alias = None;
    let mut is_leaf = true;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Ident(word) if *word == "as" => {
                alias = tokens.get(at + 1).map(TokenTree::to_string);
                break;
            }
            TokenTree::Ident(word) => prefix.push(word.to_string()),
            TokenTree::Punct(star) if star.as_char() == '*' => alias = Some("*".to_owned()),
            TokenTree::Group(group) => {
                is_leaf = false;
                let inner: Vec<_> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
                for branch in inner.split(is_comma).filter(|branch| !branch.is_empty()) {
                    use_tree(branch, prefix, leaves);
                }
            }
            _ => {}
        }
    }
    if is_leaf {
        if prefix.len() > 1 && prefix.last().is_some_and(|last| last == "self") {
            prefix.pop();
        }
        let name = alias.or_else(|| prefix.last().cloned()).unwrap_or_default();
        leaves.push((prefix.clone(), name));
    }
    prefix.truncate(depth);
}

/// The folder of a file.
fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `path` without `..`.
fn normal(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

impl Module {
    fn makes_visible(&self, wanted: &str) -> Option<&Named> {
        let visible = |named: &&Named| matches!(&named.origin, Origin::Use { name, .. } if name == wanted);
        self.paths.iter().find(visible)
    }
}

/// The file that defines what `named`, a path in the module `from`, names. `None` is another crate.
pub(super) fn definition<'a>(modules: &'a Modules, from: &[String], named: &Named) -> Option<&'a str> {
    locate(modules, from, &named.segments, named.origin != Origin::Code, 8)
}

/// `hops` bounds the `use` declarations that are followed: two modules may import each other's
/// names.
fn locate<'a>(
    modules: &'a Modules,
    from: &[String],
    segments: &[String],
    is_use: bool,
    hops: u8,
) -> Option<&'a str> {
    let mut module = from.to_vec();
    let mut rest = segments;
    let first = segments.first()?;
    let child = |module: &[String], name: &String| [module, std::slice::from_ref(name)].concat();
    match first.as_str() {
        "crate" => {
            module.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {}
        _ if is_use && !modules.contains_key(&child(&module, first)) => {
            let here = &modules[&module];
            if segments.len() > 1 && here.items.contains(first) {
                return Some(&here.file);
            }
            return None;
        }
        _ => {}
    }
    while rest.first().is_some_and(|segment| segment == "super") {
        module.pop();
        rest = &rest[1..];
    }
    while let Some(deeper) = rest.first().map(|name| child(&module, name)) {
        if !modules.contains_key(&deeper) {
            break;
        }
        module = deeper;
        rest = &rest[1..];
    }
    let found = modules.get(&module)?;
    let Some(name) = rest.first() else {
        return Some(&found.file);
    };
    if found.items.contains(name) || hops == 0 {
        return Some(&found.file);
    }
    if let Some(import) = found.makes_visible(name) {
        let segments = [&import.segments[..], &rest[1..]].concat();
        // What another crate defines is visible through this file.
        return locate(modules, &module, &segments, true, hops - 1).or(Some(&found.file));
    }
    let globs = found
        .paths
        .iter()
        .filter(|named| matches!(&named.origin, Origin::Use { name, .. } if name == "*"));
    for glob in globs {
        let target = [&glob.segments[..], &rest[..1]].concat();
        let file = locate(modules, &module, &target, true, hops - 1);
        let has = |module: &Module| module.items.contains(name) || module.makes_visible(name).is_some();
        if let Some(file) = file.filter(|file| modules.values().any(|m| m.file == *file && has(m))) {
            return Some(file);
        }
    }
    // A macro of the crate is visible at its root, wherever it stands.
    let is_macro = |candidate: &&Module| module.is_empty() && candidate.items.contains(name);
    let elsewhere = modules.values().find(is_macro);
    Some(elsewhere.map_or(&found.file, |module| &module.file))
}
