//! Chained plugins (portmap, bandwidth, firewall, tuning) and loopback: CNI commands that apply to
//! an interface that another plugin has created.

use std::collections::BTreeSet;

use cni::{ChainedRequest, Command, Error, Plugin, PluginRequest, PluginResult};
use engine::{ChainedUpdate, FirewallUpdate, GcScope, Tune};
use model::{IfName, IngressPolicy, InterfaceSettings, NetnsPath, PortMapping};

use crate::app::App;
use crate::clock;
use crate::cni::commands::port_binder;
use crate::cni::readiness::readiness;
use crate::cni::sysctl_allowlist;
use crate::cni::tuning_backup::BackupFile;
use crate::http::failure::Failure;
use crate::http::limits::log_placeholder_burst;

impl App {
    /// Executes the command. Returns the text for the plugin's standard output.
    pub(crate) async fn chained(
        &self,
        request: ChainedRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        match request.command {
            Command::Add if request.plugin == Plugin::Loopback => self.loopback(request).await,
            Command::Add => self.chained_add(request, client).await,
            Command::Del => self.chained_del(&request).await,
            Command::Check => self.chained_check(&request).await,
            Command::Gc => self.chained_gc(request).await,
            Command::Status => {
                readiness(&self.handle.live_status(), &request.header.name)?;
                Ok(String::new())
            }
            Command::Version => Ok(String::new()),
        }
    }

    async fn chained_add(
        &self,
        request: ChainedRequest,
        client: Option<u32>,
    ) -> Result<String, Failure> {
        let mut prev_result = prev_result(&request)?.clone();
        match &request.requested {
            PluginRequest::Ports(mappings) if !mappings.is_empty() => {
                let mut update = self.update(&request, mappings.clone())?;
                update.port_binder = port_binder(client, mappings);
                self.handle.adopt_or_update(update, clock::now()).await?;
            }
            PluginRequest::Limits(limits) if !limits.bandwidth.is_unlimited() => {
                log_placeholder_burst(limits);
                let mut update = self.update(&request, Vec::new())?;
                update.bandwidth = Some(limits.bandwidth);
                self.handle.adopt_or_update(update, clock::now()).await?;
            }
            PluginRequest::Policy(policy) if *policy != IngressPolicy::Open => {
                let mut update = self.update(&request, Vec::new())?;
                update.ingress = Some(*policy);
                self.handle.adopt_or_update(update, clock::now()).await?;
            }
            PluginRequest::Settings(requested) => {
                sysctl_allowlist::admit(requested)?;
                let settings = &requested.settings;
                let tune = self.tune(&request, settings)?;
                let ifname = tune.ifname.clone();
                let backup = BackupFile::of(&request.backup_folder, &tune.keys);
                let previous = self.handle.tune(tune).await?;
                if let Some(backup) = backup {
                    backup.write(&self.file_access, previous).await;
                }
                prev_result.update_interface(&ifname, settings.mac, settings.mtu);
            }
            PluginRequest::Ports(_)
            | PluginRequest::Limits(_)
            | PluginRequest::Policy(_)
            | PluginRequest::Nothing => {}
        }
        if let Some(update) = self.firewall(&request) {
            self.handle.add_firewall(update).await?;
        }
        Ok(prev_result.to_json(request.header.version)?)
    }

    /// Returns what the firewall plugin requests besides its policy: packets of the interface are
    /// accepted, after the administrator's chain. `None` without addresses.
    fn firewall(&self, request: &ChainedRequest) -> Option<FirewallUpdate> {
        let adoption = request.adoption().ok()?;
        let addresses = adoption.addresses.iter().map(|own| own.address.address);
        Some(FirewallUpdate {
            admin_chain: request.admin_chain.clone()?,
            addresses: addresses.collect(),
            keys: request.keys(&self.default_name()),
            key: adoption.key,
        })
    }

    fn update(
        &self,
        request: &ChainedRequest,
        port_mappings: Vec<PortMapping>,
    ) -> Result<ChainedUpdate, Error> {
        Ok(ChainedUpdate {
            adoption: request.adoption()?,
            port_mappings,
            bandwidth: None,
            ingress: None,
            keys: request.keys(&self.default_name()),
            port_binder: None,
        })
    }

    /// Undoes the ADD by the attachment's name alone (behaviour R12): the runtime may pass no port
    /// mappings with a DEL, and all published ports are removed nevertheless.
    async fn chained_del(&self, request: &ChainedRequest) -> Result<String, Failure> {
        match request.plugin {
            Plugin::Portmap | Plugin::Bandwidth => {
                let keys = request.keys(&self.default_name());
                self.handle.unpublish_ports(keys).await?;
            }
            Plugin::Tuning => self.tuning_del(request).await?,
            Plugin::Loopback => {
                if let Ok(netns) = namespace(request) {
                    self.handle.set_loopback(netns, false).await?;
                }
            }
            Plugin::Firewall => {
                let keys = request.keys(&self.default_name());
                self.handle.clear_ingress_policy(keys).await?;
            }
            Plugin::Viaduct | Plugin::Bridge | Plugin::HostLocal => {}
        }
        Ok(String::new())
    }

    /// Restores the previous settings of the interface, and deletes their record and backup file.
    /// Without a namespace the interface is gone, and there is nothing to restore.
    async fn tuning_del(&self, request: &ChainedRequest) -> Result<(), Failure> {
        let keys = request.keys(&self.default_name());
        let backup = BackupFile::of(&request.backup_folder, &keys);
        if namespace(request).is_ok() {
            let mut tune = self.tune(request, &InterfaceSettings::default())?;
            if let Some(backup) = &backup {
                tune.settings = backup.read(&self.file_access).await;
            }
            self.handle.restore_settings(tune).await?;
        } else {
            self.handle.delete_settings_records(keys).await?;
        }
        if let Some(backup) = backup {
            backup.remove(&self.file_access).await;
        }
        Ok(())
    }

    async fn chained_check(&self, request: &ChainedRequest) -> Result<String, Failure> {
        match &request.requested {
            PluginRequest::Ports(mappings) if !mappings.is_empty() => {
                let keys = request.keys(&self.default_name());
                let wanted: BTreeSet<PortMapping> = mappings.iter().copied().collect();
                self.handle.check_chained(keys, wanted, None).await?;
            }
            PluginRequest::Policy(policy) if *policy != IngressPolicy::Open => {
                let keys = request.keys(&self.default_name());
                let none = BTreeSet::new();
                self.handle.check_chained(keys, none, Some(*policy)).await?;
            }
            // The values may have been changed over the API since: check only that the limits are
            // applied.
            PluginRequest::Limits(limits) if !limits.bandwidth.is_unlimited() => {
                let keys = request.keys(&self.default_name());
                self.handle
                    .check_chained(keys, BTreeSet::new(), None)
                    .await?;
            }
            PluginRequest::Settings(requested) => {
                let tune = self.tune(request, &requested.settings)?;
                self.handle.check_settings(tune).await?;
            }
            PluginRequest::Nothing if request.plugin == Plugin::Loopback => {
                let lo = "lo"
                    .parse::<IfName>()
                    .map_err(|e| Error::internal(e.to_string()))?;
                let seen = self
                    .handle
                    .inspect_interface(namespace(request)?, lo)
                    .await?;
                if !seen.is_some_and(|side| side.up) {
                    return Err(Error::check_failed("lo is down").into());
                }
            }
            PluginRequest::Ports(_)
            | PluginRequest::Limits(_)
            | PluginRequest::Policy(_)
            | PluginRequest::Nothing => {}
        }
        Ok(String::new())
    }

    async fn chained_gc(&self, request: ChainedRequest) -> Result<String, Failure> {
        let Some(valid) = request.valid else {
            return Ok(String::new());
        };
        let valid = valid.into_iter();
        let collect = GcScope {
            network: request.header.name,
            valid: valid
                .map(|known| (known.container_id, known.ifname))
                .collect(),
            forced: request.forced,
        };
        self.collect_attachments(collect).await
    }

    async fn loopback(&self, request: ChainedRequest) -> Result<String, Failure> {
        let netns = namespace(&request)?;
        self.handle.set_loopback(netns.clone(), true).await?;
        let lo: IfName = "lo".parse().map_err(|_| Error::internal("lo"))?;
        let seen = self.handle.inspect_interface(netns.clone(), lo).await?;
        let addresses: Vec<_> = seen
            .map(|side| side.addresses)
            .unwrap_or_default()
            .into_iter()
            .collect();
        let own = PluginResult::of_loopback(&netns.to_string(), &addresses);
        let result = request.prev_result.unwrap_or(own);
        Ok(result.to_json(request.header.version)?)
    }

    fn tune(
        &self,
        request: &ChainedRequest,
        settings: &InterfaceSettings,
    ) -> Result<Tune, Failure> {
        let container = request
            .container
            .as_ref()
            .ok_or_else(|| Error::environment("CNI_IFNAME is missing"))?;
        Ok(Tune {
            netns: namespace(request)?,
            ifname: container.ifname.clone(),
            settings: settings.clone(),
            keys: request.keys(&self.default_name()),
        })
    }
}

fn prev_result(request: &ChainedRequest) -> Result<&PluginResult, Error> {
    let prev_result = request.prev_result.as_ref();
    prev_result.ok_or_else(|| Error::invalid_config("required prevResult missing"))
}

fn namespace(request: &ChainedRequest) -> Result<NetnsPath, Error> {
    let container = request.container.as_ref();
    let netns = container.and_then(|container| container.netns.clone());
    netns.ok_or_else(|| Error::environment("CNI_NETNS is not a path"))
}
