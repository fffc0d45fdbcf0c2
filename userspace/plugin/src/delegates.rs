//! Delegates: further networks of a pod, attached after the pod's own network and detached before
//! it.
//!
//! The list of delegates is saved to a file before the first one is attached. So a DEL finds them
//! after the configuration has changed or the namespace is gone. The delegates' plugins are
//! executed with libcni's rules by the crate `invoke`.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use cni::{Command, Delegate, DelegateNetwork, Environment, Error, FileKind, Header, NetworkList};
use invoke::{Invoker, RuntimeConf, Timeouts, find_network};
use ipam::small_files::{self, MAX_BYTES};
use model::IfName;
use serde_json::{Map, Value, json};

use crate::agent;

/// Key of `CNI_ARGS` without which plugins fail on unknown arguments.
const IGNORE: &str = "IgnoreUnknown";

/// Executes a command for the pod's own network by `own`, and for its delegates.
pub(crate) fn execute_with_delegates(
    environment: &Environment,
    header: &Header,
    config: &str,
    own: impl Fn(Command) -> Result<String, Error>,
) -> Result<String, Error> {
    let found = Delegates::of(environment, header, config);
    if environment.command == Command::Del {
        // The pod's own network is removed also if the saved file cannot be loaded.
        let deleted = found.and_then(|found| found.del());
        let result = own(Command::Del)?;
        return deleted.map(|()| result);
    }
    let found = found?;
    match environment.command {
        Command::Add if !found.networks.is_empty() => {
            found.refuse_existing_interfaces(environment, header)?;
            let result = own(Command::Add)?;
            if let Err(error) = found.add(environment) {
                // The delegates are undone already, in reverse order of attachment; our own network
                // is the last. The delegate's error is returned, not the DEL's.
                let _undone = own(Command::Del);
                return Err(error);
            }
            Ok(result)
        }
        Command::Check => {
            let result = own(Command::Check)?;
            let mut each = found.networks.iter();
            each.try_for_each(|(list, to)| found.invoker.check(list, to))?;
            Ok(result)
        }
        Command::Status => {
            let mut each = found.networks.iter();
            each.try_for_each(|(list, _)| found.invoker.status(list))?;
            own(Command::Status)
        }
        Command::Add | Command::Del | Command::Gc | Command::Version => own(environment.command),
    }
}

struct Delegates {
    networks: Vec<(NetworkList, RuntimeConf)>,
    invoker: Invoker,
    /// File with the list of delegates.
    saved: PathBuf,
}

impl Delegates {
    fn of(environment: &Environment, header: &Header, config: &str) -> Result<Self, Error> {
        let saved = saved_path(environment, header);
        let mut found = Self {
            networks: Vec::new(),
            invoker: Invoker {
                path: std::env::split_paths(&environment.path).collect(),
                cache: invoke::DEFAULT_CACHE.into(),
                timeouts: Timeouts::default(),
            },
            saved,
        };
        match environment.command {
            Command::Del if found.saved.exists() => found.networks = found.load(environment)?,
            Command::Del | Command::Gc | Command::Version => {}
            Command::Status => {
                let own: IfName = "eth0"
                    .parse()
                    .map_err(|_| Error::internal("eth0 is not an interface name"))?;
                for delegate in cni::delegates(config, &own)? {
                    found
                        .networks
                        .push(resolve(environment, &delegate, "status")?);
                }
            }
            Command::Add | Command::Check => {
                let own: IfName = environment
                    .ifname
                    .parse()
                    .map_err(|_| Error::environment("CNI_IFNAME is not an interface name"))?;
                for delegate in cni::delegates(config, &own)? {
                    let id = environment.container_id.as_str();
                    found.networks.push(resolve(environment, &delegate, id)?);
                }
            }
        }
        Ok(found)
    }

    fn add(&self, environment: &Environment) -> Result<(), Error> {
        self.save(environment)?;
        for (index, (list, attachment)) in self.networks.iter().enumerate() {
            if let Err(error) = self.invoker.add(list, attachment) {
                let undone = self.networks[..index]
                    .iter()
                    .rev()
                    .map(|(list, attachment)| self.invoker.del(list, attachment));
                // If a delegate could not be undone, the file stays for the DEL that follows.
                if undone.filter(Result::is_err).count() == 0 {
                    self.remove_saved()?;
                }
                return Err(Error {
                    msg: format!(
                        "network {} ({}): {}",
                        list.name, attachment.ifname, error.msg
                    ),
                    ..error
                });
            }
        }
        Ok(())
    }

    /// Deletes all delegates in reverse order, also after failures. The file is removed only if
    /// none failed.
    fn del(&self) -> Result<(), Error> {
        let deleted = self
            .networks
            .iter()
            .rev()
            .map(|(list, attachment)| self.invoker.del(list, attachment));
        let failures: Vec<String> = deleted
            .filter_map(|deleted| deleted.err().map(|error| error.to_string()))
            .collect();
        if failures.is_empty() {
            return self.remove_saved();
        }
        Err(Error::internal(failures.join("; ")))
    }

    /// Returns an error if an interface of a delegate already exists in the namespace, because not
    /// every plugin checks it. An agent that is down or fails is no reason to refuse: the ADD that
    /// follows reports it.
    fn refuse_existing_interfaces(
        &self,
        environment: &Environment,
        header: &Header,
    ) -> Result<(), Error> {
        for (list, attachment) in &self.networks {
            let ifname = attachment.ifname.as_str();
            if agent::has_interface(header, &environment.netns, ifname) {
                return Err(Error::taken(format!(
                    "network {}: interface {ifname} already exists in network namespace {}",
                    list.name, environment.netns
                )));
            }
        }
        Ok(())
    }

    /// Writes the file. Fails with code 7, and writes nothing, if [`Self::load`] could not load it:
    /// then no DEL would find the delegates.
    fn save(&self, environment: &Environment) -> Result<(), Error> {
        let text = self.to_json();
        self.check_loads(environment, &text)?;
        let folder = self.saved.parent().unwrap_or(Path::new("/"));
        let make = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        let draft = self.saved.with_extension("draft");
        make.and_then(|()| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &self.saved))
            .map_err(|error| self.failed("write", error.kind()))
    }

    fn check_loads(&self, environment: &Environment, text: &str) -> Result<(), Error> {
        let refuse = |why: String| {
            Error::invalid_config(format!(
                "delegates: their configurations cannot be saved for a DEL: {why}"
            ))
        };
        if text.len() as u64 > MAX_BYTES {
            let length = text.len();
            return Err(refuse(format!("{length} bytes, more than {MAX_BYTES}")));
        }
        let parsed = self.parse(environment, text);
        parsed.map(drop).map_err(|error| refuse(error.msg))
    }

    fn to_json(&self) -> String {
        let entries: Vec<Value> = self
            .networks
            .iter()
            .map(|(list, attachment)| {
                json!({
                    "config": list.to_json(),
                    "ifname": attachment.ifname.as_str(),
                    "args": attachment.args,
                    "capabilities": attachment.capabilities,
                })
            })
            .collect();
        Value::Array(entries).to_string()
    }

    fn load(&self, environment: &Environment) -> Result<Vec<(NetworkList, RuntimeConf)>, Error> {
        let text =
            small_files::read(&self.saved).map_err(|error| self.failed("read", error.kind()))?;
        self.parse(environment, &text)
    }

    /// Parses the text of a saved file.
    fn parse(
        &self,
        environment: &Environment,
        text: &str,
    ) -> Result<Vec<(NetworkList, RuntimeConf)>, Error> {
        let entries: Vec<Value> = serde_json::from_str(text)
            .map_err(|error| Error::decode(format!("{}: {error}", self.saved.display())))?;
        let loaded = entries.iter().map(|entry| {
            let config = entry["config"].as_str().unwrap_or_default();
            let list = NetworkList::parse(FileKind::List, config)?;
            let ifname: IfName = entry["ifname"]
                .as_str()
                .unwrap_or_default()
                .parse()
                .map_err(|_| {
                    Error::decode(format!("{}: invalid interface name", self.saved.display()))
                })?;
            let capabilities = entry["capabilities"].as_object().cloned();
            let id = environment.container_id.as_str();
            let attachment = attachment(environment, ifname, capabilities.unwrap_or_default(), id)?;
            let args = entry["args"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|pair| {
                    let text = |at: usize| pair[at].as_str().map(str::to_owned);
                    Some((text(0)?, text(1)?))
                });
            // From the file, because a DEL may come without the arguments of its ADD.
            let args = args.collect();
            Ok((list, RuntimeConf { args, ..attachment }))
        });
        loaded.collect()
    }

    fn remove_saved(&self) -> Result<(), Error> {
        match fs::remove_file(&self.saved) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(self.failed("remove", error.kind()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn failed(&self, action: &str, kind: ErrorKind) -> Error {
        Error::io(format!("cannot {action} {}: {kind}", self.saved.display()))
    }
}

/// Returns the file with the list of delegates, in the directory of the agent's socket, which a
/// reboot clears.
fn saved_path(environment: &Environment, header: &Header) -> PathBuf {
    let socket = header
        .socket
        .as_deref()
        .unwrap_or(Path::new(api::DEFAULT_SOCKET));
    let folder = socket.parent().unwrap_or(Path::new("/")).join("delegates");
    let Environment {
        container_id,
        ifname,
        ..
    } = environment;
    folder.join(format!("{}-{container_id}-{ifname}.json", header.name))
}

fn resolve(
    environment: &Environment,
    delegate: &Delegate,
    id: &str,
) -> Result<(NetworkList, RuntimeConf), Error> {
    let list = match &delegate.network {
        DelegateNetwork::Inline(list) => (**list).clone(),
        DelegateNetwork::Named { folder, name } => find_network(Path::new(folder), name)?,
    };
    let capabilities = delegate.capabilities.clone();
    let mut attachment = attachment(environment, delegate.ifname.clone(), capabilities, id)?;
    let own = &delegate.args;
    attachment
        .args
        .retain(|(key, _)| own.iter().all(|(other, _)| other != key));
    if !own.is_empty() && attachment.args.iter().all(|(key, _)| key != IGNORE) {
        attachment.args.push((IGNORE.to_owned(), "1".to_owned()));
    }
    attachment.args.extend(own.iter().cloned());
    Ok((delegate.adapt(list)?, attachment))
}

fn attachment(
    environment: &Environment,
    ifname: IfName,
    capabilities: Map<String, Value>,
    id: &str,
) -> Result<RuntimeConf, Error> {
    let pairs = environment
        .args
        .split(';')
        .filter_map(|pair| pair.split_once('='));
    Ok(RuntimeConf {
        container_id: id
            .parse()
            .map_err(|_| Error::environment("CNI_CONTAINERID is not a container ID"))?,
        ifname,
        netns: environment.netns.clone(),
        args: pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        capabilities,
    })
}

#[cfg(test)]
mod tests;
