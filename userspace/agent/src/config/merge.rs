//! Merges the flags of the command line over the keys of the file.

use super::Keys;

impl Keys {
    /// Returns these keys, and where one is not set, that of the file.
    pub(super) fn merge_over(self, file: Self) -> Self {
        Self {
            socket: self.socket.or(file.socket),
            read_only_socket: self.read_only_socket.or(file.read_only_socket),
            socket_group: self.socket_group.or(file.socket_group),
            metrics_listen: self.metrics_listen.or(file.metrics_listen),
            sandbox: self.sandbox.or(file.sandbox),
            state_dir: self.state_dir.or(file.state_dir),
            bpffs: self.bpffs.or(file.bpffs),
            cgroup: self.cgroup.or(file.cgroup),
            bridge: self.bridge.or(file.bridge),
            pod_cidr: flags_or_file(self.pod_cidr, file.pod_cidr),
            pod_cidr_file: self.pod_cidr_file.or(file.pod_cidr_file),
            mtu: self.mtu.or(file.mtu),
            kubenet: self.kubenet.or(file.kubenet),
            hairpin_mode: self.hairpin_mode.or(file.hairpin_mode),
            non_masquerade_cidr: self.non_masquerade_cidr.or(file.non_masquerade_cidr),
            direct_access: self.direct_access.or(file.direct_access),
            internal: self.internal.or(file.internal),
            declared_bridge: self.declared_bridge.or(file.declared_bridge),
            declared_subnet: self.declared_subnet.or(file.declared_subnet),
            uplink: flags_or_file(self.uplink, file.uplink),
            hostport_annotation: self.hostport_annotation.or(file.hostport_annotation),
            egress_address: flags_or_file(self.egress_address, file.egress_address),
            flow_table_size: self.flow_table_size.or(file.flow_table_size),
            bypass_netfilter: self.bypass_netfilter.or(file.bypass_netfilter),
            forwarding: self.forwarding.or(file.forwarding),
            xdp_guard: self.xdp_guard.or(file.xdp_guard),
            shaper: self.shaper.or(file.shaper),
            ingress_default: self.ingress_default.or(file.ingress_default),
            egress_default: self.egress_default.or(file.egress_default),
            ingress_ceiling: self.ingress_ceiling.or(file.ingress_ceiling),
            egress_ceiling: self.egress_ceiling.or(file.egress_ceiling),
            datapath_object: self.datapath_object.or(file.datapath_object),
            cni_conf_dir: self.cni_conf_dir.or(file.cni_conf_dir),
            cni_bin_dir: self.cni_bin_dir.or(file.cni_bin_dir),
            log_level: self.log_level.or(file.log_level),
        }
    }
}

fn flags_or_file(flags: Vec<String>, file: Vec<String>) -> Vec<String> {
    if flags.is_empty() { file } else { flags }
}
