//! The CNI configuration list: written once the agent can attach pods, and removed when it has not
//! served for a while, so that the runtime reports the node as not ready.
//!
//! A file without the mark belongs to other software or to the operator, and is never changed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use crate::agent::Agent;
use crate::metrics::Metrics;

/// Key and value by which a file is recognised. Runtimes ignore the key, and plugins do not get it.
const MARK: (&str, &str) = ("managedBy", "viaduct-kube");

/// Time between two checks of a file that other software may change or remove, and between two
/// attempts to write or remove it.
pub(crate) const RECHECK: Duration = Duration::from_secs(10);

/// The file, and its contents.
#[derive(Clone, Debug)]
pub(crate) struct Conflist {
    path: PathBuf,
    text: String,
}

/// Why a file is not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConflistError {
    /// The file is of other software.
    #[error("{} was not written by viaduct-kube: remove it, or choose another name", .0.display())]
    Foreign(PathBuf),
    #[error("cannot write {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
}

impl Conflist {
    /// Returns the list with the contents of `template`, by default all capabilities of the plugin.
    pub(crate) fn new(path: PathBuf, template: Option<&Path>, socket: &Path) -> Result<Self> {
        let mut list = match template {
            Some(file) => {
                let text = fs::read_to_string(file)
                    .with_context(|| format!("cannot read {}", file.display()))?;
                parse_template(&text).with_context(|| format!("unusable {}", file.display()))?
            }
            None => default_list(socket),
        };
        list[MARK.0] = MARK.1.into();
        let text = format!("{list:#}\n");
        Ok(Self { path, text })
    }

    /// Writes the file, replacing an older one of this program; returns whether it has changed.
    /// Does nothing if the file has the contents already.
    pub(crate) fn write(&self) -> Result<bool, ConflistError> {
        let io = |error| ConflistError::Io(self.path.clone(), error);
        match fs::read_to_string(&self.path) {
            Ok(found) if found == self.text => return Ok(false),
            Ok(found) if !is_marked(&found) => {
                return Err(ConflistError::Foreign(self.path.clone()));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            Ok(_) | Err(_) => {}
        }
        self.replace().map_err(io)?;
        Ok(true)
    }

    /// Removes the file if it is of this program; returns whether there was one.
    pub(crate) fn remove(&self) -> Result<bool, ConflistError> {
        let io = |error| ConflistError::Io(self.path.clone(), error);
        match fs::read_to_string(&self.path) {
            Ok(found) if is_marked(&found) => {
                fs::remove_file(&self.path).map_err(io)?;
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io(error)),
        }
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file beside the old one, which no runtime reads, and renames it.
    fn replace(&self) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or_else(|| Path::new("/"));
        fs::create_dir_all(folder)?;
        let draft = self.path.with_extension("viaduct-kube-new");
        let mut options = File::options();
        let mut file = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .open(&draft)?;
        let renamed = file
            .write_all(self.text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| fs::rename(&draft, &self.path));
        if renamed.is_err() {
            // The error is the one above.
            let _result = fs::remove_file(&draft);
        }
        renamed
    }
}

fn is_marked(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|list| list[MARK.0] == MARK.1)
}

/// Parses a list as libcni requires it.
fn parse_template(text: &str) -> Result<Value> {
    let list: Value = serde_json::from_str(text)?;
    if !list["name"].is_string() {
        bail!("a configuration list has the key \"name\"");
    }
    let plugins = list["plugins"].as_array();
    if !plugins.is_some_and(|all| all.iter().any(|one| one["type"].is_string())) {
        bail!("a configuration list has \"plugins\", each with a \"type\"");
    }
    Ok(list)
}

/// Versions are a list too, so that containerd executes STATUS.
fn default_list(socket: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0",
        "cniVersions": ["1.0.0", "1.1.0"],
        "name": "viaduct",
        "plugins": [{
            "type": "viaduct",
            "socket": socket,
            "capabilities": {
                "portMappings": true,
                "bandwidth": true,
                "ips": true,
                "mac": true,
                "ipRanges": true,
                "dns": true,
                "io.kubernetes.cri.pod-annotations": true,
            },
        }],
    })
}

/// Writes and removes the file as the agent comes and goes, and checks it again every `recheck`.
pub(crate) async fn keep(
    conflist: &Conflist,
    (grace, recheck): (Duration, Duration),
    agent: &mut Agent,
    mut synced: watch::Receiver<Option<u64>>,
    metrics: &Metrics,
) {
    let mut last_error = String::new();
    loop {
        let synced_with = *synced.borrow_and_update();
        let state = *agent.state.borrow_and_update();
        let is_ready = state.is_serving && synced_with == Some(state.generation);
        let deadline = state.since + grace;
        let is_over = !state.is_serving && deadline <= tokio::time::Instant::now();
        let result = if is_ready {
            conflist.write().map(|is_new| (is_new, "written"))
        } else if is_over {
            conflist
                .remove()
                .map(|was_there| (was_there, "removed: the agent does not serve"))
        } else {
            Ok((false, ""))
        };
        match result {
            Ok((is_changed, what)) => {
                last_error.clear();
                if is_changed {
                    let file = conflist.path().display();
                    tracing::info!(%file, "configuration list {what}");
                }
            }
            Err(error) => log_once(&mut last_error, &error),
        }
        if is_ready || is_over {
            metrics.conflist(is_ready && last_error.is_empty());
        }
        tokio::select! {
            _ = agent.state.changed() => {}
            changed = synced.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = sleep_until(deadline), if !state.is_serving && !is_over => {}
            () = sleep(recheck), if is_ready || !last_error.is_empty() => {}
        }
    }
}

fn log_once(last: &mut String, error: &ConflistError) {
    let text = match error {
        ConflistError::Foreign(_) => error.to_string(),
        ConflistError::Io(_, source) => format!("{error}: {source}"),
    };
    if *last != text {
        tracing::error!(error = %text, "no configuration list");
    }
    *last = text;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::fake::{Answer, FakeAgent, block_on};

    fn conflist(folder: &Path) -> Conflist {
        let path = folder.join("net.d/05-viaduct.conflist");
        Conflist::new(path, None, Path::new(api::DEFAULT_SOCKET)).unwrap()
    }

    #[test]
    fn the_default_list_is_the_sample_of_the_packages_and_has_the_mark() {
        let folder = tempfile::tempdir().unwrap();
        let list = conflist(folder.path());
        let mut written: Value = serde_json::from_str(&list.text).unwrap();
        assert_eq!(written[MARK.0], MARK.1);
        written.as_object_mut().unwrap().remove(MARK.0);
        let sample = include_str!("../../../xtask/assets/05-viaduct.conflist");
        assert_eq!(written, serde_json::from_str::<Value>(sample).unwrap());
    }

    #[test]
    fn a_list_is_written_once_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let list = conflist(folder.path());
        assert!(list.write().unwrap());
        assert!(!list.write().unwrap());
        let entries = fs::read_dir(folder.path().join("net.d")).unwrap();
        assert_eq!(entries.count(), 1, "no draft is left");
        assert!(list.remove().unwrap());
        assert!(!list.remove().unwrap());
    }

    #[test]
    fn an_older_list_is_replaced_and_a_foreign_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let list = conflist(folder.path());
        list.write().unwrap();
        let old = r#"{"managedBy":"viaduct-kube","name":"old"}"#;
        fs::write(list.path(), old).unwrap();
        assert!(list.write().unwrap());
        for foreign in [r#"{"name":"theirs"}"#, "half-writ"] {
            fs::write(list.path(), foreign).unwrap();
            assert!(matches!(list.write(), Err(ConflistError::Foreign(_))));
            assert!(!list.remove().unwrap());
            assert_eq!(fs::read_to_string(list.path()).unwrap(), foreign);
        }
    }

    #[test]
    fn a_template_that_no_runtime_reads_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let template = folder.path().join("template");
        let read = |text: &str| {
            fs::write(&template, text).unwrap();
            let path = folder.path().join("a.conflist");
            Conflist::new(path, Some(&template), Path::new("/run/x.sock"))
        };
        for (text, reason) in [
            ("{", "EOF"),
            (r#"{"plugins":[{"type":"viaduct"}]}"#, "\"name\""),
            (r#"{"name":"a","plugins":[]}"#, "\"plugins\""),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(reason), "{error}");
        }
        let list = read(r#"{"name":"a","plugins":[{"type":"viaduct"},{"type":"x"}]}"#).unwrap();
        assert!(is_marked(&list.text) && list.text.contains("\"x\""));
    }

    /// Runs the task until the condition holds.
    async fn keep_until(list: &Conflist, metrics: &Metrics, mut holds: impl FnMut() -> bool) {
        let fake = FakeAgent::start(|_| Answer::json(200, "[]"));
        let mut agent = fake.client();
        let (_synced, synced) = watch::channel(Some(1));
        let step = Duration::from_millis(5);
        let kept = keep(list, (Duration::ZERO, step), &mut agent, synced, metrics);
        let waited = async {
            while !holds() {
                sleep(step).await;
            }
        };
        tokio::select! {
            () = kept => panic!("the task has ended"),
            () = waited => {}
            () = sleep(Duration::from_mins(2)) => panic!("the list was not written again"),
        }
    }

    fn is_written(metrics: &Metrics) -> bool {
        let text = metrics.text().unwrap();
        text.contains("viaduct_kube_conflist_written 1\n")
    }

    #[test]
    fn a_list_that_other_software_removes_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let list = conflist(folder.path());
        let metrics = Metrics::new(true);
        let mut removals = 0;
        block_on(keep_until(&list, &metrics, || {
            let is_there = list.path().exists();
            if is_there && removals < 2 {
                fs::remove_file(list.path()).unwrap();
                removals += 1;
                return false;
            }
            is_there
        }));
        assert!(is_written(&metrics));
    }

    #[test]
    fn a_list_that_cannot_be_written_is_written_once_it_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let list = conflist(folder.path());
        // A file has the name of the directory.
        let obstacle = folder.path().join("net.d");
        fs::write(&obstacle, "").unwrap();
        let metrics = Metrics::new(true);
        let mut polls = 0;
        block_on(keep_until(&list, &metrics, || {
            polls += 1;
            if polls == 3 {
                assert!(!is_written(&metrics));
                fs::remove_file(&obstacle).unwrap();
            }
            is_written(&metrics)
        }));
        assert!(list.path().exists());
    }
}
