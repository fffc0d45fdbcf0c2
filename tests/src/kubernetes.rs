//! A real Kubernetes in the namespaces of a test: etcd, the API server and its controllers on a
//! machine of their own, and nodes with an agent and `viaduct-kube`.
//!
//! The programs are those that `cargo xtask test cluster` puts below `target/tools`.

pub mod api;
mod control_plane;
pub mod kubelet;
mod node;

pub use control_plane::{ControlPlane, Nodes};
pub use node::{Flags, KubernetesNode, KubernetesPod, PORT, attach, load_between};
