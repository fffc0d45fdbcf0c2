//! The OCI image of `cargo xtask package`: its layout, and an agent that runs from it.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use e2e::manifests::image;
use e2e::{Machine, Process, Sandbox, until};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// An image layout, unpacked.
struct Layout {
    folder: TempDir,
}

impl Layout {
    fn unpack(node: &Machine) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (from, to) = (image()?, folder.path().display());
        node.call(&format!("tar --extract --file {} -C {to}", from.display()))?;
        Ok(Self { folder })
    }

    fn json(&self, name: &str) -> Result<Value> {
        let text = fs::read(self.folder.path().join(name))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Returns the path of the blob that a descriptor is of. Its size and digest must be those of
    /// the descriptor.
    fn blob(&self, descriptor: &Value) -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().context("a digest")?;
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let path = self.folder.path().join(path);
        let content = fs::read(&path)?;
        ensure!(
            descriptor["size"] == content.len(),
            "the size of {descriptor}"
        );
        ensure!(digest_of(&content) == digest, "the digest of {descriptor}");
        Ok(path)
    }

    fn blob_json(&self, descriptor: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.blob(descriptor)?)?)?)
    }

    /// Returns manifest and configuration of the only image.
    fn image(&self) -> Result<(Value, Value)> {
        let index = self.json("index.json")?;
        let images = index["manifests"].as_array().context("manifests")?;
        ensure!(images.len() == 1, "{index}");
        let manifest = self.blob_json(&images[0])?;
        let config = self.blob_json(&manifest["config"])?;
        Ok((manifest, config))
    }
}

fn digest_of(content: &[u8]) -> String {
    let mut text = "sha256:".to_owned();
    for byte in Sha256::digest(content) {
        let _always_fits = write!(text, "{byte:02x}");
    }
    text
}

#[test]
fn the_oci_image_of_the_packages_has_the_digests_that_its_manifest_states() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let layout = Layout::unpack(&sandbox.node)?;
    assert_eq!(layout.json("oci-layout")?["imageLayoutVersion"], "1.0.0");
    let (manifest, config) = layout.image()?;
    assert_eq!(manifest["schemaVersion"], 2);
    assert_eq!(config["os"], "linux");
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/viaductd");
    let layers = manifest["layers"].as_array().context("layers")?;
    let diff_ids = config["rootfs"]["diff_ids"].as_array().context("ids")?;
    assert_eq!(layers.len(), diff_ids.len());
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        let compressed = layout.blob(layer)?;
        let unzip = format!("gzip --decompress --stdout {}", compressed.display());
        let words: Vec<&str> = unzip.split(' ').collect();
        let plain = sandbox.node.output(&words)?.stdout;
        assert_eq!(*diff_id, digest_of(&plain));
    }
    // Nothing but the blobs that the manifest names.
    let blobs = fs::read_dir(layout.folder.path().join("blobs/sha256"))?;
    assert_eq!(blobs.count(), layers.len() + 2);
    Ok(())
}

#[test]
fn an_agent_of_the_packages_oci_image_serves_from_a_root_that_has_nothing_else() -> Result<()> {
    let sandbox = Sandbox::new()?;
    let node = &sandbox.node;
    let layout = Layout::unpack(node)?;
    let (manifest, config) = layout.image()?;
    let folder = tempfile::tempdir()?;
    let root = folder.path().display().to_string();
    for layer in manifest["layers"].as_array().context("layers")? {
        let layer = layout.blob(layer)?;
        node.call(&format!(
            "tar --extract --gzip --file {} -C {root}",
            layer.display()
        ))?;
    }
    // Before the mounts: no later one is in the root.
    let mut pod = sandbox.pod("pod")?;
    // What a privileged container with the host's network has.
    for place in ["dev", "proc", "run", "sys"] {
        node.call(&format!("mount --rbind /{place} {root}/{place}"))?;
    }
    let program = config["config"]["Entrypoint"][0].as_str().context("none")?;
    let agent = [
        "chroot",
        &root,
        program,
        "--pod-cidr=10.244.1.0/24",
        "--declared-subnet=10.0.0.0/8",
    ];
    let agent = Process::start(node, &agent)?;
    let status = format!("chroot {root} /usr/bin/viaductctl status");
    until("the agent of the image answers", || {
        ensure!(agent.ended()?.is_none(), "{}", agent.output());
        Ok(node.call(&status).ok())
    })
    .with_context(|| "no answer")?;
    pod.add()?;
    e2e::ping(&pod.machine, e2e::WORLD[0], 1)?;
    let about = node.output(&["chroot", &root, "/opt/cni/bin/viaduct"])?;
    let about = String::from_utf8_lossy(&[about.stdout, about.stderr].concat()).into_owned();
    ensure!(about.contains("CNI"), "{about}");
    pod.del()?;
    drop(agent);
    for place in ["dev", "proc", "run", "sys"] {
        node.call(&format!("umount --lazy {root}/{place}"))?;
    }
    Ok(())
}
