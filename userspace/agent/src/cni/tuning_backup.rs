//! Backup files of the reference tuning plugin: the settings that an interface had before ADD, as
//! `<dataDir>/<container>_<interface>.json`.
//!
//! The store has these settings too, and takes precedence. The files allow a node to change between
//! the reference and Viaduct while pods run: each restores what the other one has changed.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use cni::Error;
use model::{AttachmentKey, InterfaceSettings};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::cni::foreign_files::FileAccess;

/// Key of the configuration that names the folder.
const KEY: &str = "dataDir";

/// Maximum file size in bytes: a backup has five short members.
const MAX_BYTES: u64 = 4096;

/// Members as the reference plugin writes them. An empty MAC address and an MTU of 0 are unset.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Backup {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "is_zero")]
    mtu: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    tx_queue_length: Option<u32>,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl From<&InterfaceSettings> for Backup {
    fn from(settings: &InterfaceSettings) -> Self {
        Self {
            mac: settings.mac.map(|mac| mac.to_string()).unwrap_or_default(),
            promisc: settings.promiscuous,
            mtu: settings.mtu.unwrap_or_default(),
            allmulti: settings.all_multicast,
            tx_queue_length: settings.tx_queue_length,
        }
    }
}

impl From<Backup> for InterfaceSettings {
    fn from(backup: Backup) -> Self {
        Self {
            mac: backup.mac.parse().ok(),
            mtu: Some(backup.mtu).filter(|mtu| *mtu != 0),
            promiscuous: backup.promisc,
            all_multicast: backup.allmulti,
            tx_queue_length: backup.tx_queue_length,
            ..Self::default()
        }
    }
}

/// The backup file of one interface.
#[derive(Clone, Debug)]
pub(crate) struct BackupFile(PathBuf);

impl BackupFile {
    /// Returns the file in `folder` of the interface that has these keys. `None` for a relative
    /// folder, and without a container.
    pub(crate) fn of(folder: &Path, keys: &[AttachmentKey]) -> Option<Self> {
        let key = keys.first()?;
        let name = format!("{}_{}.json", key.container_id, key.ifname);
        folder.is_absolute().then(|| Self(folder.join(name)))
    }

    /// Writes the settings; does nothing if there are none. A failure is logged only, because the
    /// store has the settings.
    pub(crate) async fn write(self, access: &FileAccess, settings: InterfaceSettings) {
        if !settings.has_link_settings() {
            return;
        }
        let path = self.0.clone();
        let write = move || write(&path, &Backup::from(&settings));
        let written = access
            .run(KEY, &self.0, write)
            .await
            .and_then(|done| done.map_err(|error| Error::io(error.to_string())));
        if let Err(error) = written {
            tracing::warn!(
                path = %self.0.display(),
                %error,
                "cannot write the backup of interface settings; DEL restores them from the store"
            );
        }
    }

    /// Reads the settings; default if there is no valid file.
    pub(crate) async fn read(&self, access: &FileAccess) -> InterfaceSettings {
        let path = self.0.clone();
        let read = access.run(KEY, &self.0, move || read(&path)).await;
        let backup = read.ok().and_then(Result::ok).unwrap_or_default();
        backup.into()
    }

    /// Deletes the file.
    pub(crate) async fn remove(self, access: &FileAccess) {
        let path = self.0.clone();
        let _gone = access.run(KEY, &self.0, || fs::remove_file(path)).await;
    }
}

fn write(path: &Path, backup: &Backup) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        make_searchable(folder)?;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)?;
    }
    ipam::small_files::write(path, 0o600, &serde_json::to_vec_pretty(backup)?)
}

fn read(path: &Path) -> io::Result<Backup> {
    path.parent().map_or(Ok(()), make_searchable)?;
    let text = ipam::small_files::read_up_to(path, MAX_BYTES)?;
    Ok(serde_json::from_str(&text)?)
}

/// Lets root search its folders without `CAP_DAC_OVERRIDE`, which the agent does not keep: the
/// reference makes them with mode 0600.
fn make_searchable(folder: &Path) -> io::Result<()> {
    const SEARCH: u32 = 0o100;
    let mut ancestors: Vec<&Path> = folder.ancestors().collect();
    ancestors.reverse();
    for ancestor in ancestors {
        let Ok(metadata) = fs::metadata(ancestor) else {
            return Ok(());
        };
        let mode = metadata.permissions().mode();
        let is_own = metadata.is_dir() && metadata.uid() == geteuid().as_raw();
        if is_own && mode & SEARCH == 0 {
            fs::set_permissions(ancestor, Permissions::from_mode(mode | SEARCH))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nix::sys::stat::Mode;

    use super::*;

    #[test]
    fn a_tuning_backup_has_the_reference_plugins_members() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/pod_eth0.json");
        let settings = InterfaceSettings {
            mac: "02:00:00:00:00:01".parse().ok(),
            promiscuous: Some(false),
            tx_queue_length: Some(0),
            ..InterfaceSettings::default()
        };
        write(&path, &Backup::from(&settings)).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let members: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wanted =
            serde_json::json!({ "mac": "02:00:00:00:00:01", "promisc": false, "txQLen": 0 });
        assert_eq!(members, wanted);
        assert_eq!(InterfaceSettings::from(read(&path).unwrap()), settings);
    }

    #[test]
    fn a_tuning_backup_that_is_no_regular_file_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo");
        nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
        assert!(read(&path).is_err());
        assert!(write(&path, &Backup::default()).is_err());
        assert!(read(Path::new("/dev/zero")).is_err());
        assert!(read(&folder.path().join("none")).is_err());
    }
}
