//! Names of the programs in the BPF object.

/// TC, host end of a pod's veth: packets from the pod.
pub const FROM_POD: &str = "from_pod";
/// TCX fast path, before [`FROM_POD`] on the veth of a high-traffic pod: packets of established
/// flows.
pub const FROM_BUSY_POD: &str = "from_busy_pod";
/// TC, host end of a pod's veth: packets to the pod.
pub const TO_POD: &str = "to_pod";
/// TC, uplink: incoming packets.
pub const UPLINK_IN: &str = "uplink_in";
/// TC, uplink: outgoing packets.
pub const UPLINK_OUT: &str = "uplink_out";
/// XDP, uplink: the optional prefilter, which drops invalid frames in the driver.
pub const XDP_GUARD: &str = "xdp_guard";
/// Not attached: the agent runs it to remove expired flows.
pub const SWEEP: &str = "sweep";

/// cgroup, TCP connection established: sets the socket's pacing rate to its pod's limits.
pub const PACE: &str = "pace";
/// cgroup, before `connect` of an IPv4 socket.
pub const CONNECT4: &str = "connect4";
/// cgroup, before `connect` of an IPv6 socket.
pub const CONNECT6: &str = "connect6";
/// cgroup, before `sendmsg` of an unconnected UDP socket to an IPv4 address.
pub const SENDMSG4: &str = "sendmsg4";
/// cgroup, before `sendmsg` of an unconnected UDP socket to an IPv6 address.
pub const SENDMSG6: &str = "sendmsg6";
/// cgroup, before `recvmsg` returns the IPv4 source address of a datagram.
pub const RECVMSG4: &str = "recvmsg4";
/// cgroup, before `recvmsg` returns the IPv6 source address of a datagram.
pub const RECVMSG6: &str = "recvmsg6";
/// cgroup, before `getpeername` returns an IPv4 address.
pub const GETPEERNAME4: &str = "getpeername4";
/// cgroup, before `getpeername` returns an IPv6 address.
pub const GETPEERNAME6: &str = "getpeername6";
/// cgroup, before `bind` to an IPv4 address.
pub const BIND4: &str = "bind4";
/// cgroup, before `bind` to an IPv6 address.
pub const BIND6: &str = "bind6";
