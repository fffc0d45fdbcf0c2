//! Names of the kinds of steps.

use super::Step;

impl Step {
    /// Returns the name of the step's kind, such as `create veth`. Traces group steps by it.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::SetSysctl { .. } => "set sysctl",
            Self::CreateBridge(_) => "create bridge",
            Self::DeleteBridge { .. } => "delete bridge",
            Self::Vlan(_) => "configure VLANs",
            Self::SetMac { .. } => "set MAC address",
            Self::SetMtu { .. } => "set MTU",
            Self::SetPodMtu { .. } => "set pod MTU",
            Self::SetLoopback { .. } => "set loopback",
            Self::TunePod { .. } => "tune pod",
            Self::SetPromiscuous { .. } => "set promiscuous mode",
            Self::SetUp { .. } => "set link up",
            Self::AddAddress { .. } => "add address",
            Self::RemoveAddress { .. } => "remove address",
            Self::CreateVeth(_) => "create veth",
            Self::DeleteVeth { .. } => "delete veth",
            Self::JoinBridge { .. } => "join bridge",
            Self::SetUpPod(_) => "set up pod",
            Self::AwaitAddresses { .. } => "await addresses",
            Self::Announce(_) => "announce addresses",
            Self::Attach { .. } => "attach programs",
            Self::Detach { .. } => "detach programs",
            Self::AttachSocketHooks { .. } => "attach cgroup programs",
            Self::DetachSocketHooks { .. } => "detach cgroup programs",
            Self::ReservePort { .. } => "reserve port",
            Self::LeavePort(_) => "leave port to runtime",
            Self::ReleasePort { .. } => "release port",
            Self::PutEntry { .. } => "write entry",
            Self::RemoveEntry { .. } => "remove entry",
            Self::Netfilter(_) => "change filter tables",
            Self::XdpPrefilter(_) => "change XDP prefilter",
            Self::Forwarding(_) => "change forwarding rules",
            Self::ChangeRoutes(_) => "change routes",
            Self::Tunnel(_) => "change tunnel",
            Self::Sweep => "sweep flows",
        }
    }
}
