//! Checks for rings: modules of a crate that import each other, directly or through others.
//!
//! A module is a source file. Imports are `use` declarations and paths that begin with `crate`,
//! `self` or `super`; an imported re-export counts as an import of the module that defines the
//! item. The root of a crate is its table of contents, and takes part in no ring. Tests may import
//! what they like.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::{edges, source};

/// Modules of a ring at most.
const LARGEST: usize = 3;
/// Its modules get a new order with the flow offload.
const EXEMPT: [&str; 1] = ["verdict"];

/// Path of a module from the root of its crate.
type Module = Vec<String>;
/// The imports of each module.
type Graph = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the rings of all crates of the product.
pub(super) fn offences() -> Result<Vec<String>> {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for path in source::files()? {
        let text = path.to_string_lossy().into_owned();
        let parts: Vec<&str> = text.split('/').collect();
        let ["userspace" | "ebpf-programs", name, "src", file @ ..] = parts.as_slice() else {
            continue;
        };
        if !edges::is_of_product(name)
            || EXEMPT.contains(name)
            || path.extension().is_none_or(|it| it != "rs")
        {
            continue;
        }
        let modules = crates.entry((*name).to_owned()).or_default();
        modules.insert(module_of(file), code(&source::read(Path::new(&path))?));
    }
    let found = crates.iter().flat_map(|(name, modules)| {
        let rings = rings(&imports(&without_tests(modules)));
        rings
            .into_iter()
            .filter(|ring| ring.len() > LARGEST)
            .map(move |ring| {
                let names: Vec<String> = ring.iter().map(|module| module.join("/")).collect();
                format!(
                    "{name}: {} modules import each other: {}",
                    ring.len(),
                    names.join(", ")
                )
            })
    });
    Ok(found.collect())
}

fn module_of(file: &[&str]) -> Module {
    let mut module: Module = file.iter().map(|part| (*part).to_owned()).collect();
    if let Some(last) = module.last_mut() {
        *last = last.trim_end_matches(".rs").to_owned();
    }
    let is_head = |name: &String| ["lib", "main", "mod"].contains(&name.as_str());
    if module.last().is_some_and(is_head) {
        module.pop();
    }
    module
}

/// Returns the text without comments and strings, and without what follows a module of tests. In a
/// module within the file, `super` is the file.
fn code(text: &str) -> String {
    let mut out = String::new();
    let mut is_inner = false;
    for line in text.lines() {
        is_inner |= line.contains("mod ") && !line.starts_with(' ') && line.ends_with('{');
        is_inner &= line != "}";
        let mut code: String = line
            .split("//")
            .next()
            .unwrap_or_default()
            .split('"')
            .step_by(2)
            .collect();
        // A visibility is no import.
        code = code.replace("pub(in crate::", "pub(in ");
        if is_inner {
            code = code.replace("super::", "self::");
        }
        out.push_str(&code);
        out.push('\n');
    }
    let inline = out.match_indices("#[cfg(test)]\n").find(|(at, _)| {
        out[*at..]
            .lines()
            .nth(1)
            .is_some_and(|line| line.ends_with('{'))
    });
    let end = inline.map_or(out.len(), |(at, _)| at);
    out.truncate(end);
    out
}

fn without_tests(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, String> {
    let mut tests: BTreeSet<Module> = BTreeSet::new();
    for (module, text) in modules {
        for (at, _) in text.match_indices("#[cfg(test)]\n") {
            let declared = text[at..].lines().nth(1).unwrap_or_default().trim();
            let name = declared.split_once("mod ").map(|(_, name)| name);
            if let Some(name) = name.and_then(|name| name.strip_suffix(';')) {
                tests.insert([module.as_slice(), &[name.to_owned()]].concat());
            }
        }
    }
    let is_test = |module: &Module| tests.iter().any(|test| module.starts_with(test));
    modules
        .iter()
        .filter(|(module, _)| !is_test(module))
        .map(|(module, text)| (module.clone(), text.clone()))
        .collect()
}

fn imports(modules: &BTreeMap<Module, String>) -> Graph {
    let uses: BTreeMap<Module, Vec<Vec<String>>> = modules
        .iter()
        .map(|(module, text)| (module.clone(), used(text)))
        .collect();
    let resolver = Resolver { uses: &uses };
    modules
        .iter()
        .filter(|(module, _)| !module.is_empty())
        .map(|(module, text)| {
            let inline = inline(text);
            let paths = uses[module].iter().chain(&inline);
            let imported = paths.filter_map(|path| resolver.resolve(module, path, 0));
            let others = imported.filter(|other| !other.is_empty() && other != module);
            (module.clone(), others.collect())
        })
        .collect()
}

/// Returns the paths of all `use` declarations.
fn used(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let before = text[..at].chars().next_back();
        let is_word = before.is_some_and(|it| it.is_alphanumeric() || it == '_');
        let declared = text[at + 4..].split(';').next().unwrap_or_default();
        if !is_word && !declared.contains('=') {
            expand("", declared, &mut found);
        }
    }
    found
}

/// Adds the paths of a tree of `use`.
fn expand(prefix: &str, tree: &str, found: &mut Vec<Vec<String>>) {
    let tree = tree.trim();
    let Some((head, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let path = format!("{prefix}{path}").replace(char::is_whitespace, "");
        let parts = path.split("::").filter(|part| !part.is_empty());
        found.push(parts.map(str::to_owned).collect());
        return;
    };
    let prefix = format!("{prefix}{head}");
    let body = rest.rsplit_once('}').map_or(rest, |(body, _)| body);
    let (mut depth, mut start) = (0_u32, 0);
    for (at, letter) in body.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                expand(&prefix, &body[start..at], found);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !body[start..].trim().is_empty() {
        expand(&prefix, &body[start..], found);
    }
}

/// Returns the paths within expressions and types.
fn inline(text: &str) -> Vec<Vec<String>> {
    let is_part = |it: char| it.is_alphanumeric() || it == '_' || it == ':';
    text.split(|it| !is_part(it))
        // A path that ends here is the beginning of a tree of `use`.
        .filter(|word| !word.ends_with("::"))
        .filter(|word| {
            ["crate::", "super::", "self::"]
                .iter()
                .any(|start| word.starts_with(start))
        })
        .map(|word| {
            let parts = word.split("::").filter(|part| !part.is_empty());
            parts.map(str::to_owned).collect()
        })
        .collect()
}

struct Resolver<'a> {
    uses: &'a BTreeMap<Module, Vec<Vec<String>>>,
}

impl Resolver<'_> {
    /// Returns the module of this crate that defines what the path names; `None` for other crates.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (mut module, mut rest) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            "self" => (from.clone(), &path[1..]),
            "super" => (from.clone(), path),
            first => {
                let child = [from.as_slice(), &[first.to_owned()]].concat();
                (self.uses.contains_key(&child).then(|| from.clone())?, path)
            }
        };
        while rest.first().is_some_and(|part| part == "super") {
            module.pop();
            rest = &rest[1..];
        }
        while let Some((first, others)) = rest.split_first() {
            let child = [module.as_slice(), std::slice::from_ref(first)].concat();
            if !self.uses.contains_key(&child) {
                break;
            }
            module = child;
            rest = others;
        }
        let exported = rest.first().filter(|_| module != *from && depth < 8);
        let exports = exported.and_then(|name| {
            let mut uses = self.uses.get(&module)?.iter();
            uses.find(|path| path.last() == Some(name))
        });
        let defined = exports.and_then(|path| self.resolve(&module, path, depth + 1));
        Some(defined.unwrap_or(module))
    }
}

/// Returns the sets of modules that reach each other.
fn rings(graph: &Graph) -> BTreeSet<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = graph
        .keys()
        .map(|module| (module, reached(graph, module)))
        .collect();
    reached
        .iter()
        .map(|(module, others)| {
            let back = others.iter().filter(|other| {
                let from = reached.get(**other);
                from.is_some_and(|from| from.contains(module))
            });
            back.map(|other| (*other).clone()).collect()
        })
        .collect()
}

fn reached<'a>(graph: &'a Graph, from: &'a Module) -> BTreeSet<&'a Module> {
    let mut waiting = vec![from];
    let mut seen = BTreeSet::new();
    while let Some(module) = waiting.pop() {
        for other in graph.get(module).into_iter().flatten() {
            if seen.insert(other) {
                waiting.push(other);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<usize> {
        let modules: BTreeMap<Module, String> = files
            .iter()
            .map(|(file, text)| {
                let parts: Vec<&str> = file.split('/').collect();
                (module_of(&parts), code(text))
            })
            .collect();
        let rings = rings(&imports(&without_tests(&modules)));
        rings
            .iter()
            .map(BTreeSet::len)
            .filter(|it| *it > 0)
            .collect()
    }

    const ROOT: (&str, &str) = (
        "lib.rs",
        "mod a;\nmod b;\npub use a::A;\npub use b::{B, f};\n",
    );

    #[test]
    fn modules_that_import_each_other_are_a_ring() {
        let a = ("a.rs", "use std::fmt;\nuse crate::b::{B, c::{D, E}};\n");
        assert_eq!(found(&[ROOT, a, ("b.rs", "use crate::a::A;")]), [2]);
        assert_eq!(
            found(&[ROOT, a, ("b.rs", "use std::fmt;")]),
            [] as [usize; 0]
        );
    }

    #[test]
    fn children_that_import_each_other_do_not_import_their_parent() {
        let parent = ("a.rs", "mod c;\nmod d;\nuse c::C;");
        let child = ("a/c.rs", "use super::{d};");
        assert_eq!(
            found(&[ROOT, parent, child, ("a/d.rs", "")]),
            [] as [usize; 0]
        );
    }

    #[test]
    fn an_imported_re_export_is_an_import_of_its_module() {
        let a = ("a.rs", "use crate::B;");
        assert_eq!(
            found(&[ROOT, a, ("b.rs", "fn b() { crate::A::new() }")]),
            [2]
        );
    }

    #[test]
    fn a_module_and_its_child_are_a_ring_if_both_import() {
        let child = ("a/c.rs", "use super::A;");
        assert_eq!(found(&[ROOT, ("a.rs", "mod c;\nuse c::C;"), child]), [2]);
        assert_eq!(found(&[ROOT, ("a.rs", "mod c;"), child]), [] as [usize; 0]);
    }

    #[test]
    fn the_super_of_a_module_within_a_file_is_the_file() {
        let child = ("a/c.rs", "pub(crate) mod d {\n    use super::A;\n}");
        assert_eq!(
            found(&[ROOT, ("a.rs", "mod c;\nuse c::C;"), child]),
            [] as [usize; 0]
        );
    }

    #[test]
    fn imports_of_tests_comments_and_strings_do_not_count() {
        let b = "// use crate::a::A;\nconst B: &str = \"crate::a::A\";\n#[cfg(test)]\nmod tests {\nuse crate::A;\n}";
        let a = ("a.rs", "#[cfg(test)]\nmod tests;\nuse crate::B;");
        assert_eq!(
            found(&[ROOT, a, ("b.rs", b), ("a/tests.rs", "use super::*;")]),
            [] as [usize; 0]
        );
    }
}
