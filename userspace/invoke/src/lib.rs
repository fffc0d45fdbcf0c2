//! The runtime's side of CNI, as libcni implements it.
//!
//! Finds network configurations in a directory and plugins in `CNI_PATH`, executes the plugins of a
//! list (in order for ADD, in reverse order for DEL), and caches results where libcni does.
//!
//! The crate `cni` decides which configuration a plugin gets; this crate handles only files and
//! processes. It is the only crate of the product that executes programs, because delegates are
//! foreign plugins.

#![forbid(unsafe_code)]

mod cache;
mod chained;
mod execute;
mod installation;
mod netns;
mod networks;

use std::path::PathBuf;
use std::time::Duration;

use cni::{Cached, Command, Error, NetworkList, PluginConfig, Version};
use model::{ContainerId, IfName};
use serde_json::{Map, Value};

pub use installation::{find_plugin, installation, plugin_about};
use netns::Presence;
pub use netns::run_in_netns;
pub use networks::find_network;

/// Default directory of cached results, as in libcni.
pub const DEFAULT_CACHE: &str = "/var/lib/cni/results";

/// Default directory of network configurations.
pub const DEFAULT_CONFIGURATIONS: &str = "/etc/cni/net.d";

/// Error code of a plugin that has changed nothing, because another owner has what it needs: also
/// an earlier ADD of the same attachment, which a DEL would remove.
const IN_USE: u32 = 100;

/// Default directory of plugins.
pub const DEFAULT_PATH: &str = "/opt/cni/bin";

/// Executes the plugins of network lists.
#[derive(Clone, Debug)]
pub struct Invoker {
    /// Directories with plugins, in the order of the search (`CNI_PATH`).
    pub path: Vec<PathBuf>,
    /// Directory of cached results.
    pub cache: PathBuf,
    /// Time limits of plugins.
    pub timeouts: Timeouts,
}

/// Time after which a plugin is killed. The command then fails with code 11 (try again later).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Limit for ADD and CHECK.
    pub attach: Duration,
    /// Limit for all other commands.
    pub detach: Duration,
}

impl Default for Timeouts {
    /// Returns limits shorter than those of runtimes: kubelet waits two minutes for a pod, CRI-O
    /// one minute for a DEL (behaviour C6).
    fn default() -> Self {
        Self {
            attach: Duration::from_secs(100),
            detach: Duration::from_secs(45),
        }
    }
}

impl Timeouts {
    fn of(self, command: Command) -> Duration {
        match command {
            Command::Add | Command::Check => self.attach,
            Command::Del | Command::Gc | Command::Status | Command::Version => self.detach,
        }
    }
}

/// Arguments of an execution, as libcni's `RuntimeConf`.
#[derive(Clone, Debug)]
pub struct RuntimeConf {
    /// Container ID (`CNI_CONTAINERID`).
    pub container_id: ContainerId,
    /// Name of the interface in the container (`CNI_IFNAME`).
    pub ifname: IfName,
    /// Path of the network namespace (`CNI_NETNS`); empty if it is gone.
    pub netns: String,
    /// Key-value pairs of `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Capability arguments, by capability; plugins get those that they declare.
    pub capabilities: Map<String, Value>,
}

impl Invoker {
    /// Executes ADD and returns the last result; each plugin gets the result of the previous one.
    ///
    /// An attachment that exists already is not added again: the cached result of its ADD is
    /// returned, or an error if its arguments differ. After a failure, executes DEL for what this
    /// call has made: never for an interface that existed before.
    pub fn add(&self, list: &NetworkList, attachment: &RuntimeConf) -> Result<Value, Error> {
        if let Some(result) = self.remembered(list, attachment)? {
            return Ok(result);
        }
        let ifname = attachment.ifname.as_str();
        let before = netns::find_interface(&attachment.netns, ifname);
        let mut result = None;
        for (index, plugin) in list.plugins.iter().enumerate() {
            let config = list.config_for(plugin, result.as_ref(), &attachment.capabilities);
            let answer = self
                .run(plugin, Command::Add, &config, Some(attachment))
                .and_then(|answer| parse(plugin, &answer));
            match answer {
                Ok(answer) => result = Some(answer),
                Err(error) => {
                    let made = if before == Presence::Present || error.code == IN_USE {
                        &list.plugins[..index]
                    } else {
                        // Everything that exists now is this call's: the failed plugin may have
                        // left a part of its work.
                        &list.plugins[..]
                    };
                    // The ADD's error is returned, not the DEL's.
                    let _undone = self.del_plugins(list, made, attachment, result.as_ref());
                    return Err(error);
                }
            }
        }
        let result = result.unwrap_or(Value::Null);
        self.cache_result(&cache_entry(list, attachment, &result))?;
        Ok(result)
    }

    /// Returns the cached result if the attachment exists already. Removes the remains of an
    /// attachment whose namespace or interface is gone, so that a new ADD can follow.
    fn remembered(
        &self,
        list: &NetworkList,
        attachment: &RuntimeConf,
    ) -> Result<Option<Value>, Error> {
        let (id, ifname) = (&attachment.container_id, &attachment.ifname);
        let Some(cached) = self.cached_result(&list.name, id, ifname) else {
            return Ok(None);
        };
        if netns::find_interface(&cached.netns, ifname.as_str()) == Presence::Absent {
            // Without the namespace's path: another namespace may be there now. A plugin that
            // cannot remove the remains refuses the ADD that follows.
            let _remains = self.del_cached(&cached, "");
            self.remove_cached(&list.name, id, ifname)?;
            return Ok(None);
        }
        let attached = || {
            format!(
                "container {id} is attached to network {} as {ifname} already",
                list.name
            )
        };
        let detach = "nothing was changed; detach it first (CNI DEL)";
        let wanted = cache_entry(list, attachment, &cached.result);
        if let Some(other) = difference(&cached, &wanted) {
            let message = format!("{}, with another {other}", attached());
            return Err(Error::taken(message).with_details(detach));
        }
        if list.version >= Version::V0_4_0 {
            self.check(list, attachment).map_err(|error| Error {
                msg: format!("{}, and its CHECK fails: {}", attached(), error.msg),
                details: format!("{}\n{detach}", error.details).trim().to_owned(),
                ..error
            })?;
        }
        Ok(Some(cached.result))
    }

    /// Executes DEL in reverse order. Goes on after failures and returns all of them. The cached
    /// result is removed only if none failed.
    pub fn del(&self, list: &NetworkList, attachment: &RuntimeConf) -> Result<(), Error> {
        let result = self
            .cached_result(&list.name, &attachment.container_id, &attachment.ifname)
            .map(|cached| cached.result);
        self.del_plugins(list, &list.plugins, attachment, result.as_ref())?;
        self.remove_cached(&list.name, &attachment.container_id, &attachment.ifname)
    }

    /// Executes DEL of these plugins of the list in reverse order, and returns all failures.
    fn del_plugins(
        &self,
        list: &NetworkList,
        plugins: &[PluginConfig],
        attachment: &RuntimeConf,
        result: Option<&Value>,
    ) -> Result<(), Error> {
        // Before CNI 0.4.0, a DEL has no `prevResult`.
        let result = result.filter(|_| list.version >= Version::V0_4_0);
        let mut failures: Vec<Error> = plugins
            .iter()
            .rev()
            .filter_map(|plugin| {
                let config = list.config_for(plugin, result, &attachment.capabilities);
                self.run(plugin, Command::Del, &config, Some(attachment))
                    .err()
            })
            .collect();
        match failures.len() {
            0 => Ok(()),
            1 => Err(failures.remove(0)),
            _ => Err(combined(&failures)),
        }
    }

    /// Executes DEL of a cached attachment with the configuration of its ADD, which may be gone
    /// from the directory.
    pub fn del_cached(&self, cached: &Cached, netns: &str) -> Result<(), Error> {
        let list = NetworkList::parse(cni::FileKind::List, &cached.config)?;
        let attachment = RuntimeConf {
            container_id: cached.container_id.clone(),
            ifname: cached.ifname.clone(),
            netns: netns.to_owned(),
            args: cached.args.clone(),
            capabilities: cached.capabilities.clone(),
        };
        self.del(&list, &attachment)
    }

    /// Executes CHECK with the cached result.
    pub fn check(&self, list: &NetworkList, attachment: &RuntimeConf) -> Result<(), Error> {
        if list.disable_check {
            return Ok(());
        }
        if list.version < Version::V0_4_0 {
            return Err(Error::incompatible_version(format!(
                "configuration version {} does not support CHECK command",
                list.version
            )));
        }
        let cached = self.cached_result(&list.name, &attachment.container_id, &attachment.ifname);
        let Some(cached) = cached else {
            return Err(Error::check_failed(format!(
                "no cached result of container {} on network {}",
                attachment.container_id, list.name
            )));
        };
        for plugin in &list.plugins {
            let config = list.config_for(plugin, Some(&cached.result), &attachment.capabilities);
            self.run(plugin, Command::Check, &config, Some(attachment))?;
        }
        Ok(())
    }

    /// Executes DEL of cached attachments whose namespace is gone, and then GC with the other
    /// cached attachments as valid ones (behaviour S12).
    pub fn gc(&self, list: &NetworkList, force: bool) -> Result<(), Error> {
        if list.disable_gc {
            return Ok(());
        }
        let (live, stale): (Vec<_>, Vec<_>) = self
            .cached_of_network(&list.name)?
            .into_iter()
            .partition(|cached| std::path::Path::new(&cached.netns).exists());
        let mut failures: Vec<Error> = stale
            .iter()
            .map(|cached| self.del_cached(cached, ""))
            .filter_map(Result::err)
            .collect();
        if list.version >= Version::V1_1_0 {
            let valid: Vec<Value> = live.iter().map(|cached| {
                serde_json::json!({ "containerID": cached.container_id.as_str(), "ifname": cached.ifname.as_str() })
            }).collect();
            for plugin in &list.plugins {
                let config = list.config_for_gc(plugin, &valid, force);
                failures.extend(self.run(plugin, Command::Gc, &config, None).err());
            }
        }
        if failures.is_empty() {
            Ok(())
        } else {
            Err(combined(&failures))
        }
    }

    /// Executes STATUS of each plugin. Before CNI 1.1.0, which has no STATUS, only looks for the
    /// executables.
    pub fn status(&self, list: &NetworkList) -> Result<(), Error> {
        for plugin in &list.plugins {
            if list.version >= Version::V1_1_0 {
                let config = list.config_for(plugin, None, &Map::new());
                self.run(plugin, Command::Status, &config, None)?;
            } else {
                self.find(&plugin.kind)?;
            }
        }
        Ok(())
    }

    /// Executes a delegated plugin with the complete configuration of the caller (behaviour S14).
    /// The `CNI_*` variables are those of this process, except the command. Returns the plugin's
    /// standard output.
    pub fn delegate(&self, kind: &str, command: Command, config: &str) -> Result<String, Error> {
        let program = self.find(kind)?;
        let environment = vec![("CNI_COMMAND", command.name().into())];
        let timeout = self.timeouts.of(command);
        execute::run(&program, &environment, config, timeout).map_err(|error| named(kind, error))
    }

    fn find(&self, kind: &str) -> Result<PathBuf, Error> {
        let mut candidates = self.path.iter().map(|folder| folder.join(kind));
        let found = candidates.find(|file| file.is_file());
        found.ok_or_else(|| Error::invalid_config(format!("no plugin {kind:?} in {:?}", self.path)))
    }

    fn run(
        &self,
        plugin: &PluginConfig,
        command: Command,
        config: &str,
        attachment: Option<&RuntimeConf>,
    ) -> Result<String, Error> {
        let program = self.find(&plugin.kind)?;
        let environment = execute::environment(command, attachment, &self.path)?;
        let timeout = self.timeouts.of(command);
        execute::run(&program, &environment, config, timeout)
            .map_err(|error| named(&plugin.kind, error))
    }
}

fn cache_entry(list: &NetworkList, attachment: &RuntimeConf, result: &Value) -> Cached {
    Cached {
        container_id: attachment.container_id.clone(),
        ifname: attachment.ifname.clone(),
        network: list.name.clone(),
        netns: attachment.netns.clone(),
        config: list.to_json(),
        args: attachment.args.clone(),
        capabilities: attachment.capabilities.clone(),
        result: result.clone(),
    }
}

/// Returns the first argument in which two ADDs of one attachment differ.
fn difference(cached: &Cached, wanted: &Cached) -> Option<&'static str> {
    // The text differs by runtime, the list does not.
    let list_of = |cached: &Cached| NetworkList::parse(cni::FileKind::List, &cached.config).ok();
    let same = [
        ("network namespace", cached.netns == wanted.netns),
        ("configuration", list_of(cached) == list_of(wanted)),
        ("CNI_ARGS", cached.args == wanted.args),
        (
            "set of capability arguments",
            cached.capabilities == wanted.capabilities,
        ),
    ];
    same.into_iter()
        .find_map(|(name, same)| (!same).then_some(name))
}

fn parse(plugin: &PluginConfig, answer: &str) -> Result<Value, Error> {
    serde_json::from_str(answer).map_err(|error| {
        named(
            &plugin.kind,
            Error::decode(format!("the result is not JSON: {error}")),
        )
    })
}

fn named(kind: &str, error: Error) -> Error {
    Error {
        msg: format!("plugin {kind}: {}", error.msg),
        ..error
    }
}

fn combined(failures: &[Error]) -> Error {
    let code = failures.first().map_or(999, |error| error.code);
    let messages: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Error::new(code, messages.join("; "))
}

#[cfg(test)]
mod tests;
