//! CNI from the runtime's side: finds configurations in a folder and plugins on a path, executes a list forward for ADD and
//! in reverse for DEL, and remembers results where libcni does.
//!
//! What plugins are handed is decided in `cni`; here are files and processes only. The one place of the product that
//! executes anything, and that is what it is for: a delegate is somebody else's program.

#![forbid(unsafe_code)]

mod cache;
mod execute;
mod networks;

use std::path::PathBuf;
use std::time::Duration;

use cni::{Cached, Command, Error, NetworkList, PluginConfig, Version};
use model::{ContainerId, IfName};
use serde_json::{Map, Value};

pub use networks::find_network;

/// Where runtimes keep results unless they are told otherwise.
pub const DEFAULT_CACHE: &str = "/var/lib/cni/results";

/// Where runtimes keep configurations.
pub const DEFAULT_CONFIGURATIONS: &str = "/etc/cni/net.d";

/// Where runtimes find plugins.
pub const DEFAULT_PATH: &str = "/opt/cni/bin";

/// Executes lists of plugins.
#[derive(Clone, Debug)]
pub struct Invoker {
    /// Folders to find plugins in.
    pub path: Vec<PathBuf>,
    /// Folder of remembered results.
    pub cache: PathBuf,
    /// How long a plugin may take.
    pub patience: Patience,
}

/// How long a plugin may take before it is killed, which is a failure like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For ADD and CHECK.
    pub attach: Duration,
    /// For all else.
    pub detach: Duration,
}

impl Default for Patience {
    /// Less than what runtimes wait for us: kubelet two minutes for a pod, CRI-O one for a DEL (behaviour C6).
    fn default() -> Self {
        Self {
            attach: Duration::from_secs(100),
            detach: Duration::from_secs(45),
        }
    }
}

impl Patience {
    fn with(self, command: Command) -> Duration {
        match command {
            Command::Add | Command::Check => self.attach,
            Command::Del | Command::Gc | Command::Status | Command::Version => self.detach,
        }
    }
}

/// What a list is executed for.
#[derive(Clone, Debug)]
pub struct Attachment {
    /// The container.
    pub container_id: ContainerId,
    /// The interface.
    pub ifname: IfName,
    /// Path of the network namespace; empty when it is gone.
    pub netns: String,
    /// `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Capability arguments.
    pub capabilities: Map<String, Value>,
}

impl Invoker {
    /// ADD: each plugin gets the result of the one before; returns the last result. After a failure everything is taken
    /// back, the failed plugin included.
    pub fn add(&self, list: &NetworkList, attachment: &Attachment) -> Result<Value, Error> {
        let mut result = None;
        for plugin in &list.plugins {
            let config = list.config_for(plugin, result.as_ref(), &attachment.capabilities);
            match self.run(plugin, Command::Add, &config, Some(attachment)) {
                Ok(answer) => result = Some(parse(plugin, &answer)?),
                Err(error) => {
                    // Its own failure is what counts; DEL goes through to the end anyway.
                    let _undone = self.del(list, attachment);
                    return Err(error);
                }
            }
        }
        let result = result.unwrap_or(Value::Null);
        self.remember(&cached(list, attachment, &result))?;
        Ok(result)
    }

    /// DEL, in reverse and through to the end; every failure is told. What was remembered is forgotten when all is gone.
    pub fn del(&self, list: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        let remembered = self.recall(&list.name, &attachment.container_id, &attachment.ifname);
        let result = remembered.map(|cached| cached.result);
        // Older plugins do not know it in a DEL.
        let result = result.filter(|_| list.version >= Version::V0_4_0);
        let mut failures = Vec::new();
        for plugin in list.plugins.iter().rev() {
            let config = list.config_for(plugin, result.as_ref(), &attachment.capabilities);
            failures.extend(
                self.run(plugin, Command::Del, &config, Some(attachment))
                    .err(),
            );
        }
        match failures.len() {
            0 => self.forget(&list.name, &attachment.container_id, &attachment.ifname),
            1 => Err(failures.remove(0)),
            _ => Err(all(&failures)),
        }
    }

    /// DEL of what is remembered, by the configuration of its ADD: that may be gone from the folder by now.
    pub fn del_remembered(&self, cached: &Cached, netns: &str) -> Result<(), Error> {
        let list = NetworkList::parse(cni::FileKind::List, &cached.config)?;
        let attachment = Attachment {
            container_id: cached.container_id.clone(),
            ifname: cached.ifname.clone(),
            netns: netns.to_owned(),
            args: cached.args.clone(),
            capabilities: cached.capabilities.clone(),
        };
        self.del(&list, &attachment)
    }

    /// CHECK with the remembered result.
    pub fn check(&self, list: &NetworkList, attachment: &Attachment) -> Result<(), Error> {
        if list.disable_check {
            return Ok(());
        }
        if list.version < Version::V0_4_0 {
            return Err(Error::incompatible_version(format!(
                "configuration version {} does not support CHECK command",
                list.version
            )));
        }
        let remembered = self.recall(&list.name, &attachment.container_id, &attachment.ifname);
        let Some(cached) = remembered else {
            return Err(Error::check_failed(format!(
                "there is no remembered result of {} on network {}",
                attachment.container_id, list.name
            )));
        };
        for plugin in &list.plugins {
            let config = list.config_for(plugin, Some(&cached.result), &attachment.capabilities);
            self.run(plugin, Command::Check, &config, Some(attachment))?;
        }
        Ok(())
    }

    /// Removes what is remembered and of no namespace that is there, and then lets each plugin remove what is not
    /// remembered (behaviour S12).
    pub fn gc(&self, list: &NetworkList, force: bool) -> Result<(), Error> {
        if list.disable_gc {
            return Ok(());
        }
        let (live, stale): (Vec<_>, Vec<_>) = self
            .remembered(&list.name)?
            .into_iter()
            .partition(|cached| std::path::Path::new(&cached.netns).exists());
        let mut failures: Vec<Error> = stale
            .iter()
            .map(|cached| self.del_remembered(cached, ""))
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
            Err(all(&failures))
        }
    }

    /// STATUS of each plugin; plugins of older versions are not asked.
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

    /// One plugin with another's environment and whole configuration, as delegated plugins are executed (behaviour S14):
    /// `CNI_*` are those that we were executed with ourselves, but for the command. Returns what it says on standard
    /// output.
    pub fn delegate(&self, kind: &str, command: Command, config: &str) -> Result<String, Error> {
        let program = self.find(kind)?;
        let environment = vec![("CNI_COMMAND", command.name().into())];
        let patience = self.patience.with(command);
        execute::run(&program, &environment, config, patience).map_err(|error| named(kind, error))
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
        attachment: Option<&Attachment>,
    ) -> Result<String, Error> {
        let program = self.find(&plugin.kind)?;
        let environment = execute::environment(command, attachment, &self.path)?;
        let patience = self.patience.with(command);
        execute::run(&program, &environment, config, patience)
            .map_err(|error| named(&plugin.kind, error))
    }
}

fn cached(list: &NetworkList, attachment: &Attachment, result: &Value) -> Cached {
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

fn parse(plugin: &PluginConfig, answer: &str) -> Result<Value, Error> {
    serde_json::from_str(answer)
        .map_err(|error| named(&plugin.kind, Error::decode(format!("the result: {error}"))))
}

fn named(kind: &str, error: Error) -> Error {
    Error {
        msg: format!("plugin {kind}: {}", error.msg),
        ..error
    }
}

fn all(failures: &[Error]) -> Error {
    let code = failures.first().map_or(999, |error| error.code);
    let told: Vec<String> = failures.iter().map(ToString::to_string).collect();
    Error::new(code, told.join("; "))
}

#[cfg(test)]
mod tests;
