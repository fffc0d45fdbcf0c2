//! The families of measurements, in the order of execution.

use anyhow::Result;

use crate::goals::Goal;
use crate::plan::Plan;
use crate::row::Row;
use crate::{
    add_latency, between_nodes, bulk, checks, connect, datagrams, docker, drops, flows, memory,
    packet_cost, pair, plugin_start, policies, request_response, shaping,
};

/// A group of measurements with one name on the command line.
pub(crate) struct Family {
    /// Its name on the command line and in reports.
    pub(crate) name: &'static str,
    /// Its title before the subject of a row, in tables of several families.
    pub(crate) title: &'static str,
    /// Description for `list` and for the report.
    pub(crate) about: &'static str,
    /// Whether it runs when no family is named.
    pub(crate) usual: bool,
    /// Whether it is measured beside other software as well.
    pub(crate) company: bool,
    /// Measures all systems in interleaved rounds.
    pub(crate) measure: fn(&Plan) -> Result<Vec<Row>>,
    /// Goals for its rows.
    pub(crate) goals: &'static [Goal],
}

/// All families. A new one is a module and an entry here.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "path",
        title: "CPU per UDP packet",
        about: "CPU time per UDP packet, small or in fragments, on one CPU",
        usual: true,
        company: true,
        measure: packet_cost::measure,
        goals: packet_cost::GOALS,
    },
    Family {
        name: "turns",
        title: "TCP request and response",
        about: "TCP request and response on one CPU, with one thread and with two",
        usual: true,
        company: true,
        measure: request_response::measure,
        goals: request_response::GOALS,
    },
    Family {
        name: "flows",
        title: "CPU per small UDP packet, many flows",
        about: "CPU time per small UDP packet on each path, by the number of flows that send in turns",
        usual: true,
        company: true,
        measure: flows::measure,
        goals: &[],
    },
    Family {
        name: "datagrams",
        title: "small UDP packets",
        about: "small UDP packets received per second, one CPU sending and one receiving",
        usual: true,
        company: true,
        measure: datagrams::measure,
        goals: datagrams::GOALS,
    },
    Family {
        name: "bulk",
        title: "bulk TCP",
        about: "bulk TCP with iperf3: throughput, and CPU time of all CPUs",
        usual: true,
        company: true,
        measure: bulk::measure,
        goals: bulk::GOALS,
    },
    Family {
        name: "connect",
        title: "TCP connections",
        about: "TCP connections opened and closed per second on one CPU, by the number of hostports",
        usual: true,
        company: true,
        measure: connect::measure,
        goals: connect::GOALS,
    },
    Family {
        name: "add",
        title: "CNI",
        about: "latency of ADD and DEL of a pod with a hostport",
        usual: true,
        company: true,
        measure: add_latency::measure,
        goals: add_latency::GOALS,
    },
    Family {
        name: "start",
        title: "plugin start",
        about: "run time of the plugin itself, without an agent",
        usual: true,
        company: false,
        measure: plugin_start::measure,
        goals: &[],
    },
    Family {
        name: "memory",
        title: "memory",
        about: "resident memory of the agent",
        usual: true,
        company: true,
        measure: memory::measure,
        goals: &[],
    },
    Family {
        name: "checks",
        title: "checks of what pods send",
        about: "CPU time per UDP packet and TCP connections, with and without checks of what pods send",
        usual: false,
        company: false,
        measure: checks::measure,
        goals: checks::GOALS,
    },
    Family {
        name: "docker",
        title: "docker run",
        about: "start of a container with a published port by Docker's bridge driver and by the driver viaduct",
        usual: false,
        company: false,
        measure: docker::measure,
        goals: docker::GOALS,
    },
    Family {
        name: "docker-ports",
        title: "Docker's published ports",
        about: "published ports of networks of Docker's bridge driver and of the driver viaduct, beside Docker's rules",
        usual: false,
        company: false,
        measure: docker::measure_ports,
        goals: &[],
    },
    Family {
        name: "drops",
        title: "drop events",
        about: "CPU time per dropped packet, with and without a client that follows drop events",
        usual: false,
        company: false,
        measure: drops::measure,
        goals: drops::GOALS,
    },
    Family {
        name: "policies",
        title: "network policies",
        about: "UDP packets, first packets of flows and TCP connections, with and without 1,000 network policies",
        usual: false,
        company: true,
        measure: policies::measure,
        goals: policies::GOALS,
    },
    Family {
        name: "shaping",
        title: "bandwidth limits",
        about: "bandwidth limits, Viaduct and the reference's bandwidth plugin: rates, latency, CPU",
        usual: false,
        company: true,
        measure: shaping::measure,
        goals: shaping::GOALS,
    },
    Family {
        name: "nodes",
        title: "pods of two nodes",
        about: "CPU time per small UDP packet between pods of two nodes, by routes and in tunnels, by the number of peers",
        usual: false,
        company: true,
        measure: between_nodes::measure,
        goals: between_nodes::GOALS,
    },
    Family {
        name: "pair",
        title: "two nodes",
        about: "two nodes and a client, each on its own machine",
        usual: false,
        company: false,
        measure: pair::measure,
        goals: &[],
    },
];
