//! The modules, items and paths of a crate's sources, read from their tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr as _;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::Text;
use super::paths::{parent, resolve};

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
    reader.file(root, parent(root), &[]);
    reader.modules
}

/// The tokens of a file, without items for tests alone.
pub(super) fn tokens(text: &Text) -> Vec<TokenTree> {
    // rustc reports what is not Rust.
    code(TokenStream::from_str(&text.text).unwrap_or_default())
}

/// These tokens, without items for tests alone.
pub(super) fn code(tokens: TokenStream) -> Vec<TokenTree> {
    let mut all: Vec<_> = tokens.into_iter().collect();
    let mut at = 0;
    while let [mark, rest @ ..] = &all[at..] {
        match rest.first() {
            Some(TokenTree::Group(group)) if is_char(mark, '#') && is_for_tests(group) => {
                all.drain(at..=at + item_length(rest));
            }
            _ => at += 1,
        }
    }
    all
}

/// An attribute without spaces.
fn attribute(group: &Group) -> String {
    group.to_string().split_whitespace().collect()
}

fn is_for_tests(group: &Group) -> bool {
    let attribute = attribute(group);
    attribute.starts_with("[cfg(test") || attribute.starts_with("[cfg(all(test")
}

/// The file of `#[path = "…"]`.
fn named_file(group: &Group) -> Option<String> {
    let attribute = (group.delimiter() == Delimiter::Bracket).then(|| attribute(group))?;
    let path = attribute.strip_prefix("[path=\"")?.strip_suffix("\"]")?;
    Some(path.to_owned())
}

fn is_char(token: &TokenTree, c: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == c)
}

struct Reader<'a> {
    texts: &'a [Text],
    modules: Modules,
}

/// The place that is read.
#[derive(Clone, Copy)]
struct Scope<'a> {
    file: &'a str,
    module: &'a [String],
    /// The folder of the files that `mod` lines name here.
    folder: &'a str,
}

impl Reader<'_> {
    fn file(&mut self, file: &str, folder: &str, module: &[String]) {
        let Some(text) = self.texts.iter().find(|text| text.path == file) else {
            return; // generated, or selected by a condition that does not hold
        };
        let scope = Scope { file, module, folder };
        self.enter(scope, &tokens(text));
    }

    fn enter(&mut self, scope: Scope<'_>, tokens: &[TokenTree]) {
        let module = Module {
            file: scope.file.to_owned(),
            ..Module::default()
        };
        self.modules.insert(scope.module.to_vec(), module);
        self.scan(scope, true, tokens);
    }

    /// `of_module` is false inside functions, types and macros.
    fn scan(&mut self, scope: Scope<'_>, of_module: bool, tokens: &[TokenTree]) {
        let (mut at, mut public, mut other_file) = (0, false, None);
        while let Some(token) = tokens.get(at) {
            let rest = &tokens[at + 1..];
            at += 1;
            match token {
                TokenTree::Group(group) => {
                    other_file = named_file(group).or(other_file);
                    self.scan(scope, false, &code(group.stream()));
                }
                TokenTree::Ident(ident) => match ident.to_string().as_str() {
                    "pub" => {
                        public = true;
                        at += usize::from(matches!(rest.first(), Some(TokenTree::Group(_))));
                        continue;
                    }
                    "mod" if of_module => {
                        self.child(scope, rest, other_file.take());
                        at += 2;
                    }
                    "use" => {
                        let mut parts = rest.split(|token| is_char(token, ';'));
                        let tree = parts.next().unwrap_or_default(); // there is always one
                        let mut leaves = Vec::new();
                        use_tree(tree, &mut Vec::new(), &mut leaves);
                        for (segments, name) in leaves {
                            let origin = match of_module {
                                true => Origin::Use { name, public },
                                false => Origin::LocalUse,
                            };
                            self.module(scope).paths.push(Named { segments, origin });
                        }
                        at += tree.len() + 1;
                    }
                    "crate" | "super" | "self" if is_path(rest) => {
                        let segments = path(&tokens[at - 1..]);
                        at += (segments.len() - 1) * 3;
                        let origin = Origin::Code;
                        self.module(scope).paths.push(Named { segments, origin });
                    }
                    "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
                    | "macro_rules"
                        if of_module =>
                    {
                        let item = rest.iter().find_map(|token| match token {
                            TokenTree::Ident(ident) if *ident != "mut" => Some(ident.to_string()),
                            _ => None,
                        });
                        self.module(scope).items.extend(item);
                    }
                    _ => {}
                },
                _ => {}
            }
            public = false;
        }
    }

    /// `rest` follows the word `mod`.
    fn child(&mut self, scope: Scope<'_>, rest: &[TokenTree], other_file: Option<String>) {
        let [TokenTree::Ident(name), body, ..] = rest else {
            return; // a macro's pattern
        };
        let module = &[scope.module, &[name.to_string()]].concat();
        let folder = &format!("{}/{name}", scope.folder);
        if let TokenTree::Group(body) = body {
            let scope = Scope {
                module,
                folder,
                ..scope
            };
            self.enter(scope, &code(body.stream()));
        } else if let Some(other) = other_file {
            let path = resolve(parent(scope.file), &other);
            self.file(&path, parent(&path), module);
        } else {
            let candidates = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
            let exists = |path: &&String| self.texts.iter().any(|text| text.path == **path);
            if let Some(path) = candidates.iter().find(exists) {
                self.file(path, folder, module);
            }
        }
    }

    fn module(&mut self, scope: Scope<'_>) -> &mut Module {
        self.modules.entry(scope.module.to_vec()).or_default()
    }
}

/// The length of the item that begins with an attribute.
fn item_length(tokens: &[TokenTree]) -> usize {
    let is_word = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if *word == "use");
    let is_use = tokens.iter().take(4).any(is_word);
    let is_body = |group: &Group| group.delimiter() == Delimiter::Brace && !is_use;
    let ends = |token: &TokenTree| match token {
        TokenTree::Group(group) => is_body(group),
        token => is_char(token, ';'),
    };
    let end = tokens.iter().position(ends);
    end.map_or(tokens.len(), |end| end + 1)
}

/// Whether `::` and a name follow.
fn is_path(rest: &[TokenTree]) -> bool {
    matches!(rest, [one, two, TokenTree::Ident(_), ..] if is_char(one, ':') && is_char(two, ':'))
}

/// The segments of the path that `tokens` begins with.
fn path(tokens: &[TokenTree]) -> Vec<String> {
    let mut segments = vec![tokens[0].to_string()];
    let mut rest = &tokens[1..];
    while is_path(rest) {
        segments.push(rest[2].to_string());
        rest = &rest[3..];
    }
    segments
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
            star if is_char(star, '*') => alias = Some("*".to_owned()),
            TokenTree::Group(group) => {
                is_leaf = false;
                let inner: Vec<_> = group.stream().into_iter().collect();
                let branches = inner.split(|token| is_char(token, ','));
                for branch in branches.filter(|branch| !branch.is_empty()) {
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
        let name = alias.or_else(|| prefix.last().cloned()).unwrap_or_default(); // `use {};`
        leaves.push((prefix.clone(), name));
    }
    prefix.truncate(depth);
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
            return (segments.len() > 1 && here.items.contains(first)).then_some(&*here.file);
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
