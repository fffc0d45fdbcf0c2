//! Other software that a node has beside a CNI plugin: container engines, firewalls and a service
//! proxy, as Debian packages them.
//!
//! Each runs on the node of a sandbox, with files and sockets of its own, and writes its own rules.

mod api_server;
mod docker;
mod firewalld;
mod kube_proxy;
mod neighbour;
mod podman;
mod recorded;
mod tools;
mod ufw;

pub use docker::{Docker, DockerRelease};
pub use firewalld::Firewalld;
pub use kube_proxy::{KubeProxy, Service};
pub use neighbour::Container;
pub use podman::DebianPodman;
pub use recorded::{RecordedRules, rules_of};
pub use tools::{has_program, newest, tools};
pub use ufw::Ufw;
