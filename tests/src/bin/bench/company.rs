//! Rules of other software on the measured nodes: recorded from kube-proxy and Docker, and restored
//! before the first pod is attached.

use std::fmt::Write as _;
use std::net::IpAddr;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use e2e::Machine;
use e2e::company::RecordedRules;

use crate::topology::{PORTS, Tables};

/// Cluster IP of the measured service.
const CLUSTER_IP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 96, 2, 1));

/// Software whose rules the measured nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Company {
    /// None.
    #[value(name = "none")]
    Alone,
    /// kube-proxy with ten services.
    KubeProxy,
    /// Docker with one container that publishes a port.
    Docker,
}

impl Company {
    /// All, in the order of measurement.
    pub(crate) const ALL: [Self; 3] = [Self::Alone, Self::KubeProxy, Self::Docker];

    /// Returns the name in reports, if there is other software.
    pub(crate) fn name(self) -> Option<&'static str> {
        self.rules().map(|(name, _)| name)
    }

    /// Restores the rules on `node`, in tables of this kind.
    pub(crate) fn join(self, node: &Machine, tables: Tables) -> Result<()> {
        match self.rules() {
            Some((_, rules)) => rules.restore_by(node, tables.suffix()),
            None => Ok(()),
        }
    }

    /// Adds a service with this pod as its endpoint, on the ports that are measured. Returns its
    /// cluster IP; `None` where the software has no services.
    pub(crate) fn serve(
        self,
        node: &Machine,
        tables: Tables,
        endpoint: IpAddr,
    ) -> Result<Option<IpAddr>> {
        if self != Self::KubeProxy {
            return Ok(None);
        }
        let path = "/run/service.rules";
        node.run(|| std::fs::write(path, service(endpoint)))?;
        let tool = format!("iptables-{}-restore", tables.suffix());
        node.call(&format!("{tool} --noflush {path}"))
            .context("cannot add the rules of a service")?;
        Ok(Some(CLUSTER_IP))
    }

    fn rules(self) -> Option<(&'static str, RecordedRules)> {
        match self {
            Self::Alone => None,
            Self::KubeProxy => Some(("kube-proxy", RecordedRules::KubeProxy)),
            Self::Docker => Some(("Docker", RecordedRules::Docker)),
        }
    }
}

/// Returns the rules of the service in the nat table, as kube-proxy writes them.
fn service(endpoint: IpAddr) -> String {
    let mut chains = String::new();
    let mut rules = String::new();
    for port in PORTS {
        let (service, pod) = (
            format!("KUBE-SVC-{port:016}"),
            format!("KUBE-SEP-{port:016}"),
        );
        let port_of = format!("-d {CLUSTER_IP}/32 -p udp -m udp --dport {port}");
        let _ = write!(chains, ":{service} - [0:0]\n:{pod} - [0:0]\n");
        let _ = write!(
            rules,
            "-A KUBE-SERVICES ! -s 10.244.0.0/16 {port_of} -j KUBE-MARK-MASQ\n\
             -A KUBE-SERVICES {port_of} -j {service}\n\
             -A {service} -j {pod}\n\
             -A {pod} -s {endpoint}/32 -j KUBE-MARK-MASQ\n\
             -A {pod} -p udp -m udp -j DNAT --to-destination {endpoint}:{port}\n",
        );
    }
    format!("*nat\n{chains}{rules}COMMIT\n")
}
