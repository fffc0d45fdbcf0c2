//! An OCI image of the agent, as an archive of an image layout (OCI image specification 1.1), made
//! without a container runtime.
//!
//! The image has one layer: the static programs, the BPF object and the plugin, and no other
//! software. `podman load`, `ctr image import` and `skopeo copy oci-archive:` read the archive.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{Release, fresh, stage};
use crate::sbom::hexadecimal;
use crate::{command, source};

/// Files of the image: their source below the checkout, their place, and their mode.
const FILES: [(&str, &str, u32); 6] = [
    ("target/dist/bin/viaductd", "usr/bin/viaductd", 0o755),
    ("target/dist/bin/viaductctl", "usr/bin/viaductctl", 0o755),
    (
        "target/dist/bin/viaduct-kube",
        "usr/bin/viaduct-kube",
        0o755,
    ),
    (
        "target/dist/lib/viaduct/datapath.o",
        "usr/lib/viaduct/datapath.o",
        0o644,
    ),
    ("target/dist/cni/viaduct", "opt/cni/bin/viaduct", 0o755),
    ("LICENSE", "usr/share/doc/viaduct/copyright", 0o644),
];

/// Empty directories, over which a runtime mounts those of the node.
const MOUNT_POINTS: [&str; 6] = ["dev", "etc/viaduct", "proc", "run", "sys", "tmp"];

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Writes the archive into `folder`.
pub(super) fn build(release: &Release, folder: &Path) -> Result<()> {
    let place = fresh(&folder.join("stage/oci"))?;
    let root = place.join("root");
    for (from, to, mode) in FILES {
        let bytes = fs::read(release.arch.file(from))?;
        stage::put(&root.join(to), &bytes, mode)?;
    }
    for directory in MOUNT_POINTS {
        fs::create_dir_all(root.join(directory))?;
    }
    let layout = place.join("layout");
    lay_out(release, &root, &layout)?;
    let name = format!(
        "viaduct-{}-{}.oci.tar",
        release.version,
        release.arch.name()
    );
    tar(release, &layout, &folder.join(name))
}

/// Writes the image layout of a root file system into `layout`.
fn lay_out(release: &Release, root: &Path, layout: &Path) -> Result<()> {
    let blobs = Blobs::new(layout)?;
    let plain = layout.with_file_name("layer.tar");
    tar(release, root, &plain)?;
    let diff_id = digest(&fs::read(&plain)?);
    let layer = blobs.put(LAYER, &compressed(&plain)?)?;
    let time = time(release)?;
    let labels = json!({
        "org.opencontainers.image.title": "viaduct",
        "org.opencontainers.image.description": "Container bridge networking in eBPF: the agent of a node",
        "org.opencontainers.image.version": release.version,
        "org.opencontainers.image.revision": source::commit().unwrap_or_default(),
        "org.opencontainers.image.created": time,
    });
    let config = json!({
        "created": time,
        "architecture": release.arch.debian(),
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/viaductd"],
            "WorkingDir": "/",
            "Labels": labels,
        },
        "rootfs": { "type": "layers", "diff_ids": [diff_id] },
        "history": [{ "created": time, "created_by": "cargo xtask package" }],
    });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.put_json(CONFIG, &config)?,
        "layers": [layer],
        "annotations": labels,
    });
    let mut entry = blobs.put_json(MANIFEST, &manifest)?;
    entry["platform"] = json!({ "architecture": release.arch.debian(), "os": "linux" });
    entry["annotations"] = json!({
        // Names for podman and skopeo, and for containerd.
        "org.opencontainers.image.ref.name": format!("viaduct:{}", release.version),
        "io.containerd.image.name": format!("localhost/viaduct:{}", release.version),
    });
    let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [entry] });
    stage::put(&layout.join("index.json"), &bytes(&index), 0o644)?;
    let version = json!({ "imageLayoutVersion": "1.0.0" });
    stage::put(&layout.join("oci-layout"), &bytes(&version), 0o644)
}

/// The blobs of an image layout.
struct Blobs<'a> {
    layout: &'a Path,
}

impl<'a> Blobs<'a> {
    fn new(layout: &'a Path) -> Result<Self> {
        fs::create_dir_all(layout)?;
        Ok(Self { layout })
    }

    /// Writes a blob, and returns its descriptor.
    fn put(&self, kind: &str, content: &[u8]) -> Result<Value> {
        let digest = digest(content);
        let name = digest.replace(':', "/");
        stage::put(&self.layout.join("blobs").join(name), content, 0o644)?;
        Ok(json!({ "mediaType": kind, "digest": digest, "size": content.len() }))
    }

    fn put_json(&self, kind: &str, value: &Value) -> Result<Value> {
        self.put(kind, &bytes(value))
    }
}

/// Returns the digest as descriptors have it: `sha256:` and 64 hexadecimal digits.
fn digest(content: &[u8]) -> String {
    format!("sha256:{}", hexadecimal(&Sha256::digest(content)))
}

/// Returns the JSON text, with sorted keys.
fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Packs everything below `from`, by GNU tar.
fn tar(release: &Release, from: &Path, to: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name"]);
    tar.args(["--owner=root:0", "--group=root:0", "--numeric-owner"]);
    tar.arg("--mode=u=rwX,go=rX");
    tar.arg(format!("--mtime=@{}", release.epoch));
    tar.arg("--file").arg(to).arg("--directory").arg(from);
    // By their names: an entry `./` would set the attributes of the container's root.
    let mut names: Vec<_> = fs::read_dir(from)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<Result<_>>()?;
    names.sort();
    command::run(tar.args(names))
}

/// Returns a file's content, compressed by gzip without name and time.
fn compressed(file: &Path) -> Result<Vec<u8>> {
    let output = Command::new("gzip")
        .args(["-9n"])
        .stdin(fs::File::open(file)?)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start gzip")?;
    anyhow::ensure!(output.status.success(), "gzip failed: {}", output.status);
    Ok(output.stdout)
}

/// Returns the time of the sources as RFC 3339 has it.
fn time(release: &Release) -> Result<String> {
    let at = format!("--date=@{}", release.epoch);
    let text = command::output(Command::new("date").args(["--utc", &at, "+%FT%TZ"]))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::Arch;
    use crate::project;

    /// Makes a root file system, and returns the index of its image.
    fn index_of(place: &Path, content: &str) -> String {
        let root = place.join("root");
        stage::put(&root.join("usr/bin/program"), content.as_bytes(), 0o755).unwrap();
        fs::create_dir_all(root.join("run")).unwrap();
        let layout = place.join("layout");
        let release = Release {
            version: "1.2.3",
            arch: Arch::HOST,
            epoch: 1_700_000_000,
        };
        lay_out(&release, &root, &layout).unwrap();
        fs::read_to_string(layout.join("index.json")).unwrap()
    }

    #[test]
    fn images_are_equal_exactly_if_their_files_are() {
        let folder = project::root().join("target/oci-test");
        let place = |name: &str| fresh(&folder.join(name)).unwrap();
        let one = index_of(&place("one"), "a");
        assert_eq!(index_of(&place("same"), "a"), one);
        assert_ne!(index_of(&place("other"), "b"), one);
        assert!(one.contains("viaduct:1.2.3"), "{one}");
        fs::remove_dir_all(folder).unwrap();
    }
}
