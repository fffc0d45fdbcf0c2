//! The other software of a row, and what it publishes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::Result;

use crate::company::{
    Container, DebianPodman, Docker, DockerRelease, Firewalld, KubeProxy, RecordedRules, Service,
    Ufw, has_program, newest,
};
use crate::{Machine, NODE, Sandbox};

/// The port by which Docker and podman publish their container, and the container's own.
const PUBLISHED: u16 = 8081;
const CONTAINER: u16 = 7000;

/// Cluster IPs, port and node port of the service of the first pod.
const SERVICE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0x10)),
];
const SERVICE_PORT: u16 = 80;
const NODE_PORT: u16 = 30_080;

/// Other software.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Software {
    /// None.
    Plain,
    /// Docker of the installed Debian.
    Docker,
    /// Docker of Debian's newest suite.
    NewestDocker,
    /// firewalld with its default zone.
    Firewalld,
    /// ufw with its default policies.
    Ufw,
    /// kube-proxy in iptables mode.
    KubeProxy,
    /// The rules of a kube-proxy, without the process.
    KubeProxyRules,
    /// podman with the installed reference plugins.
    Podman,
}

impl Software {
    /// All software that runs itself, in the order of the table.
    pub const ALL: [Self; 7] = [
        Self::Plain,
        Self::Docker,
        Self::NewestDocker,
        Self::Firewalld,
        Self::Ufw,
        Self::KubeProxy,
        Self::Podman,
    ];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Docker | Self::NewestDocker => "Docker",
            Self::Firewalld => "firewalld",
            Self::Ufw => "ufw",
            Self::KubeProxy => "kube-proxy",
            Self::KubeProxyRules => "kube-proxy's rules",
            Self::Podman => "podman",
        }
    }

    /// Returns the program that is missing to run it, if one is.
    fn missing(self) -> Option<&'static str> {
        let programs: &[&'static str] = match self {
            Self::Plain | Self::KubeProxy | Self::KubeProxyRules => &[],
            Self::Docker => &["dockerd", "docker", "runc"],
            Self::NewestDocker => &["docker", "runc"],
            Self::Firewalld => &["firewalld", "firewall-cmd", "dbus-daemon"],
            Self::Ufw => &["ufw"],
            Self::Podman => &["podman", "crun", "conmon"],
        };
        let built = match self {
            Self::NewestDocker => Some(("docker", "dockerd")),
            Self::KubeProxy => Some(("kubernetes", "kube-proxy")),
            Self::Plain
            | Self::Docker
            | Self::Firewalld
            | Self::Ufw
            | Self::KubeProxyRules
            | Self::Podman => None,
        };
        let unbuilt = built
            .filter(|(name, proof)| newest(name, proof).is_none())
            .map(|(_, program)| program);
        let mut programs = programs.iter().copied();
        programs.find(|program| !has_program(program)).or(unbuilt)
    }

    /// Returns what this machine lacks to run it, if anything: a program, or a match of the
    /// kernel's packet filter.
    pub fn lack(self) -> Result<Option<String>> {
        if let Some(program) = self.missing() {
            return Ok(Some(format!("{program} is not installed")));
        }
        let sandbox = Sandbox::new()?;
        let mut rules = self.typical_rules().iter();
        let refused = rules.find_map(|rule| sandbox.node.call(rule).err());
        Ok(refused.map(|error| format!("the kernel refuses rules of {}: {error:#}", self.name())))
    }

    /// Returns commands that add rules with all matches and targets that it uses.
    fn typical_rules(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &[],
            Self::Docker
            | Self::NewestDocker
            | Self::KubeProxy
            | Self::KubeProxyRules
            | Self::Podman => &[
                "iptables -t nat -A POSTROUTING -m addrtype --dst-type LOCAL -m comment --comment a -j MASQUERADE",
                "ip6tables -t nat -A POSTROUTING -m addrtype --dst-type LOCAL -m comment --comment a -j MASQUERADE",
                "iptables -t nat -A PREROUTING -m mark --mark 1/1 -j MARK --set-xmark 0x0/0x4000",
                "iptables -A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT",
            ],
            Self::Firewalld => &[
                "nft add table inet typical",
                "nft add chain inet typical in { type filter hook prerouting priority -140 ; }",
                "nft add rule inet typical in meta nfproto ipv6 fib saddr . mark . iif oif missing drop",
                "nft add rule inet typical in ct status dnat accept",
                "nft add chain inet typical through { type filter hook forward priority 10 ; }",
                "nft add rule inet typical through reject with icmpx admin-prohibited",
            ],
            Self::Ufw => &[
                "iptables -A INPUT -m limit --limit 3/min --limit-burst 10 -j LOG --log-prefix a",
                "ip6tables -A INPUT -m rt --rt-type 0 -j DROP",
                "ip6tables -A INPUT -p icmpv6 --icmpv6-type router-solicitation -m hl --hl-eq 255 -j ACCEPT",
                "iptables -A INPUT -m addrtype --dst-type MULTICAST -j RETURN",
            ],
        }
    }

    /// Starts it on `node`, whose first pod has the addresses `first`, IPv4 first.
    pub(super) fn start(self, node: &Machine, first: [IpAddr; 2]) -> Result<Running> {
        Ok(match self {
            Self::Plain => Running::plain(),
            Self::Docker => docker(node, DockerRelease::Installed)?,
            Self::NewestDocker => docker(node, DockerRelease::Newest)?,
            Self::Firewalld => {
                let firewalld = Firewalld::start(node)?;
                Running::of(firewalld.version()?, firewalld)
            }
            Self::Ufw => {
                let ufw = Ufw::enable(node)?;
                Running::of(ufw.version()?, ufw)
            }
            Self::KubeProxy => {
                let proxy = KubeProxy::start(node, &services(first))?;
                let version = KubeProxy::version().unwrap_or_default();
                Running::of(version, proxy).publishing_service()
            }
            Self::KubeProxyRules => {
                RecordedRules::KubeProxy.restore(node)?;
                Running::of("1.20.2".to_owned(), ()).publishing_service()
            }
            Self::Podman => {
                let podman = DebianPodman::new(node)?;
                let container = podman.run("theirs", PUBLISHED, CONTAINER)?;
                Running::of(podman.version()?, podman).publishing(container)
            }
        })
    }
}

/// Whether the software runs before the first pod is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Order {
    /// The software has been started before.
    Before,
    /// The software is started while pods run.
    After,
}

impl Order {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Before, Self::After];

    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before the pods",
            Self::After => "after the pods",
        }
    }
}

/// Running software, and what it publishes. Dropping it ends the software.
pub(super) struct Running {
    pub(super) version: String,
    /// Where a pod reaches what it publishes, IPv4 first.
    pub(super) published: Option<[SocketAddr; 2]>,
    /// Where its clients reach a pod, if not by the pod's own hostport.
    pub(super) entry: Option<[SocketAddr; 2]>,
    /// Its container.
    pub(super) container: Option<Container>,
    _software: Box<dyn std::any::Any>,
}

impl Running {
    fn plain() -> Self {
        Self::of(String::new(), ())
    }

    fn of<T: 'static>(version: String, software: T) -> Self {
        Self {
            version,
            published: None,
            entry: None,
            container: None,
            _software: Box::new(software),
        }
    }

    fn publishing(mut self, container: Container) -> Self {
        self.published = Some(NODE.map(|node| SocketAddr::new(node, container.published)));
        self.container = Some(container);
        self
    }

    fn publishing_service(mut self) -> Self {
        self.published = Some(SERVICE.map(|address| SocketAddr::new(address, SERVICE_PORT)));
        self.entry = Some(NODE.map(|node| SocketAddr::new(node, NODE_PORT)));
        self
    }
}

fn docker(node: &Machine, release: DockerRelease) -> Result<Running> {
    let docker = Docker::start(node, release)?;
    let container = docker.run("theirs", PUBLISHED, CONTAINER)?;
    Ok(Running::of(docker.version()?, docker).publishing(container))
}

/// Returns ten services. The first is served by a pod with the addresses `first`, the others by
/// pods that do not exist.
pub(super) fn services(first: [IpAddr; 2]) -> Vec<Service> {
    let own = Service {
        name: "web".to_owned(),
        addresses: SERVICE,
        port: SERVICE_PORT,
        node_port: NODE_PORT,
        endpoints: first.to_vec(),
        target: CONTAINER,
    };
    let others = (1..10).map(|number: u8| {
        let host = u16::from(number);
        let endpoint = |pod: u8| {
            let six = Ipv6Addr::new(0xfd00, 0x10, 0x244, 9, 0, 0, host, u16::from(pod));
            [
                IpAddr::V4(Ipv4Addr::new(10, 244, 100 + number, pod)),
                IpAddr::V6(six),
            ]
        };
        Service {
            name: format!("other-{number}"),
            addresses: [
                IpAddr::V4(Ipv4Addr::new(10, 96, 1, number)),
                IpAddr::V6(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 1, host)),
            ],
            port: SERVICE_PORT,
            node_port: NODE_PORT + host,
            endpoints: (2..5).flat_map(endpoint).collect(),
            target: CONTAINER,
        }
    });
    std::iter::once(own).chain(others).collect()
}
