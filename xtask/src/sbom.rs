//! Software bills of materials of the shipped files, in the format `CycloneDX` 1.6 (JSON).
//!
//! Components are the crates that are compiled into a file, as `cargo tree` resolves them for its
//! target and features, with the checksums of `Cargo.lock`. Build scripts, proc macros and
//! dependencies of tests are no part of a file. The document has neither time nor serial number, so
//! that equal builds have equal documents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{command, project};

/// A file of the distribution, and the package that it is built from.
pub(crate) struct Shipped {
    pub(crate) file: PathBuf,
    pub(crate) package: &'static str,
    pub(crate) target: String,
    /// Packages that are built by the same call of cargo: features are unified over all of them.
    pub(crate) built_with: &'static [&'static str],
    /// Libraries of the compiler that are linked in, and the version line of the compiler.
    pub(crate) runtime: &'static str,
    pub(crate) compiler: String,
}

/// Writes the document of each file into `folder`.
pub(crate) fn write(folder: &Path, shipped: &[Shipped]) -> Result<()> {
    let lock = fs::read_to_string(project::root().join("Cargo.lock"))?;
    let checksums = checksums(&lock);
    fs::create_dir_all(folder)?;
    for one in shipped {
        let graph = Graph::parse(&tree(one)?)?;
        let document = one.document(&graph, &checksums)?;
        let name = one.file.file_name().context("a file")?.to_string_lossy();
        let path = folder.join(format!("{name}.cdx.json"));
        fs::write(&path, format!("{document:#}\n"))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn tree(shipped: &Shipped) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.arg("tree").args(["--locked", "--charset", "ascii"]);
    for package in shipped.built_with {
        cargo.args(["-p", package]);
    }
    cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "depth"]);
    cargo.args(["--target", &shipped.target, "--format", " {p}|{l}"]);
    command::output(&mut cargo)
}

/// Name and version of a crate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    name: String,
    version: String,
}

impl Id {
    /// Returns the package URL (purl), which identifies the component.
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Crate {
    licence: String,
    /// Whether it is a package of this workspace.
    own: bool,
    dependencies: BTreeSet<Id>,
}

/// Crates with their dependencies.
#[derive(Debug, Default)]
struct Graph(BTreeMap<Id, Crate>);

impl Graph {
    /// Parses the output of `cargo tree --prefix depth`. A crate whose dependencies were printed
    /// before has a mark in place of them.
    fn parse(text: &str) -> Result<Self> {
        let mut graph = Self::default();
        let mut above: Vec<Id> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            let (depth, id, found) = parse_line(line).with_context(|| format!("line {line:?}"))?;
            ensure!(depth <= above.len(), "{line:?} is too deep");
            above.truncate(depth);
            if let Some(parent) = above.last().and_then(|parent| graph.0.get_mut(parent)) {
                parent.dependencies.insert(id.clone());
            }
            graph.0.entry(id.clone()).or_insert(found);
            above.push(id);
        }
        Ok(graph)
    }

    /// Returns a package of this workspace with all that it depends on.
    fn below(&self, package: &str) -> Result<(Id, BTreeMap<Id, Crate>)> {
        let mut own = self.0.iter().filter(|(_, it)| it.own);
        let (root, _) = own
            .find(|(id, _)| id.name == package)
            .with_context(|| format!("no package {package}"))?;
        let mut found = BTreeMap::new();
        let mut next = vec![root.clone()];
        while let Some(id) = next.pop() {
            let one = self.0.get(&id).context("each dependency is in the graph")?;
            if found.insert(id, one.clone()).is_none() {
                next.extend(one.dependencies.iter().cloned());
            }
        }
        Ok((root.clone(), found))
    }
}

/// Parses `3 name v1.2.3 (source)|licence (*)`.
fn parse_line(line: &str) -> Option<(usize, Id, Crate)> {
    let (depth, rest) = line.split_once(' ')?;
    let (package, licence) = rest.split_once('|')?;
    let mut words = package.split(' ');
    let id = Id {
        name: words.next()?.to_owned(),
        version: words.next()?.strip_prefix('v')?.to_owned(),
    };
    let own = words.next().is_some_and(|source| source.starts_with("(/"));
    let licence = licence.strip_suffix(" (*)").unwrap_or(licence);
    let found = Crate {
        // A slash is an old way to say OR, and no SPDX expression.
        licence: licence.replace('/', " OR "),
        own,
        dependencies: BTreeSet::new(),
    };
    Some((depth.parse().ok()?, id, found))
}

/// Returns the checksums (SHA-256, hexadecimal) of the packages in `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<Id, String> {
    let value = |line: &str, key: &str| {
        let text = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        text.strip_suffix('"').map(str::to_owned)
    };
    lock.split("[[package]]")
        .filter_map(|package| {
            let of = |key| package.lines().find_map(|line| value(line, key));
            let id = Id {
                name: of("name")?,
                version: of("version")?,
            };
            Some((id, of("checksum")?))
        })
        .collect()
}

impl Shipped {
    fn document(&self, graph: &Graph, checksums: &BTreeMap<Id, String>) -> Result<Value> {
        let (root, crates) = graph.below(self.package)?;
        let mut components = Vec::new();
        let mut dependencies = Vec::new();
        for (id, one) in &crates {
            let urls: Vec<String> = one.dependencies.iter().map(Id::url).collect();
            dependencies.push(json!({ "ref": id.url(), "dependsOn": urls }));
            if *id != root {
                components.push(component(id, one, checksums.get(id))?);
            }
        }
        components.push(self.runtime()?);
        let bytes =
            fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let name = self.file.file_name().context("a file")?.to_string_lossy();
        let own = &crates[&root];
        Ok(json!({
            "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
            "metadata": {
                "component": {
                    "type": "application", "bom-ref": root.url(), "name": name,
                    "version": root.version,
                    "licenses": [{ "expression": own.licence }],
                    "hashes": [{ "alg": "SHA-256", "content": hexadecimal(&Sha256::digest(&bytes)) }],
                },
                "properties": [{ "name": "viaduct:target", "value": self.target }],
            },
            "components": components,
            "dependencies": dependencies,
        }))
    }

    /// Returns the compiler's own libraries as one component.
    fn runtime(&self) -> Result<Value> {
        let mut words = self.compiler.split_whitespace();
        let version = words.nth(1).context("rustc prints its version")?;
        let url = format!("pkg:generic/{}@{version}", self.runtime);
        Ok(json!({
            "type": "library", "bom-ref": url, "name": self.runtime, "version": version,
            "purl": url, "description": "Libraries of the Rust toolchain",
        }))
    }
}

fn component(id: &Id, one: &Crate, checksum: Option<&String>) -> Result<Value> {
    ensure!(
        one.own || checksum.is_some(),
        "Cargo.lock has no checksum of {}",
        id.url()
    );
    ensure!(!one.licence.is_empty(), "{} has no licence", id.url());
    let mut component = json!({
        "type": "library", "bom-ref": id.url(), "name": id.name, "version": id.version,
        "licenses": [{ "expression": one.licence }],
    });
    if let Some(checksum) = checksum {
        component["purl"] = json!(id.url());
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    Ok(component)
}

/// Returns two digits for each byte.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "\
0 agent v0.1.0 (/checkout/userspace/agent)|Apache-2.0
1 model v0.1.0 (/checkout/userspace/model)|Apache-2.0
2 libc v0.2.1|MIT/Apache-2.0
1 nix v0.31.3|MIT
2 libc v0.2.1|MIT/Apache-2.0

0 ctl v0.1.0 (/checkout/userspace/ctl)|Apache-2.0
1 model v0.1.0 (/checkout/userspace/model)|Apache-2.0 (*)
";

    const LOCK: &str = "\
[[package]]
name = \"model\"
version = \"0.1.0\"

[[package]]
name = \"libc\"
version = \"0.2.1\"
source = \"registry+index\"
checksum = \"ab12\"

[[package]]
name = \"nix\"
version = \"0.31.3\"
checksum = \"cd34\"
";

    fn shipped(package: &'static str) -> Shipped {
        Shipped {
            file: project::root().join("LICENSE"),
            package,
            target: "x86_64-unknown-linux-gnu".to_owned(),
            built_with: &[],
            runtime: "rust-std",
            compiler: "rustc 1.95.0 (f2d3ce0bd 2026-03-21)".to_owned(),
        }
    }

    fn names(document: &Value) -> Vec<&str> {
        let components = document["components"].as_array().unwrap();
        components
            .iter()
            .filter_map(|it| it["name"].as_str())
            .collect()
    }

    #[test]
    fn a_file_has_the_crates_below_its_own_package_only() {
        let graph = Graph::parse(TREE).unwrap();
        let document = |package| {
            let one = shipped(package);
            one.document(&graph, &checksums(LOCK)).unwrap()
        };
        let agent = document("agent");
        assert_eq!(names(&agent), ["libc", "model", "nix", "rust-std"]);
        let ctl = document("ctl");
        assert_eq!(names(&ctl), ["libc", "model", "rust-std"]);
        let libc = &ctl["components"][0];
        assert_eq!(libc["purl"], "pkg:cargo/libc@0.2.1");
        assert_eq!(libc["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(libc["hashes"][0]["content"], "ab12");
        let edges = ctl["dependencies"].as_array().unwrap();
        let model = edges.iter().find(|it| it["ref"] == "pkg:cargo/model@0.1.0");
        assert_eq!(model.unwrap()["dependsOn"], json!(["pkg:cargo/libc@0.2.1"]));
        let own = &ctl["metadata"]["component"]["hashes"][0]["content"];
        assert_eq!(own.as_str().map(str::len), Some(64));
    }

    #[test]
    fn a_crate_without_checksum_or_licence_is_an_error() {
        let document = |tree: &str, lock: &str| {
            let graph = Graph::parse(tree).unwrap();
            shipped("agent").document(&graph, &checksums(lock))
        };
        assert!(document(TREE, LOCK).is_ok());
        let error = document(TREE, "").unwrap_err();
        assert!(
            error.to_string().contains("no checksum of pkg:cargo/libc"),
            "{error}"
        );
        let error = document(&TREE.replace("|MIT\n", "|\n"), LOCK).unwrap_err();
        assert!(
            error.to_string().contains("nix@0.31.3 has no licence"),
            "{error}"
        );
        assert!(Graph::parse("2 deep v1.0.0|MIT").is_err());
        assert!(Graph::parse("0 noversion|MIT").is_err());
    }
}
